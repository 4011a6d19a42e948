"""A group that is wiped out is named, and stops the run if asked."""

import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import pipeline, prepare
from fineweb_mask.flows.pipeline.losses import REMEDIES, WipedGroupError
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.status.garbage import collect_garbage
from fineweb_mask.flows.status.inspection import inspect_recipe
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import OTHER_NAMES
from fineweb_mask.tasks.catalog.query import open_catalog
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.workspace.listing import update_index
from fineweb_mask.tasks.workspace.references import NOT_KEPT
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.pipeline.run_here import RunHere, recipe_of, text_of

COPIED = "deduplication keeps 1 of 40 documents (2.5%) of source 'hansard': 39 near-duplicates"


def table_of(source, texts, **columns):
    given = {"text": texts, "id": [f"{source}-{n}" for n in range(len(texts))], "source": [source] * len(texts)}
    return pa.table(given | columns)


def texts_of(source, count=40):
    return [text_of(len(source), number) for number in range(count)]


@pytest.fixture
def corpus(tmp_path):
    """Three sources, of which hansard has 40 copies of one page with other last words; some pages are too short."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    hansard = table_of("hansard", [f"{text_of(0)} {text_of(1, number)[:11]}" for number in range(40)])
    posts = table_of("posts", texts_of("posts") + ["short"] * 5)
    pq.write_table(pa.concat_tables([table_of("wiki", texts_of("wiki")), hansard.slice(0, 10)]), folder / "a.parquet")
    pq.write_table(pa.concat_tables([posts, hansard.slice(10)]), folder / "b.parquet")
    return folder


def settings_of(folder, corpus, *, by=None, **ingest):
    pytest.importorskip("rensa")
    others = {"materialize": {"layout": "flat"}, "report": {"by": by}}
    return recipe_of(folder, corpus, ingest={"near_dedup": 0.7} | ingest, **others)


def run_of(folder, corpus, *, seed=None, **options):
    """Run all stages as far as deduplication."""
    run = RunHere(settings_of(folder, corpus, **options), seed=seed)
    prepare(run)
    return run


def losses_in(run):
    write_catalog(run.workspace, shard_files(run), run.losses)
    with open_catalog(run.workspace, "1GB") as catalog:
        return catalog.execute("FROM losses").fetchall()


def test_every_step_that_drops_documents_has_a_name_and_a_remedy():
    assert REMEDIES.keys() == {"ingest", *OTHER_NAMES} >= set(NOT_KEPT)


@pytest.mark.long
def test_a_source_of_near_copies_is_named_everywhere(tmp_path, corpus, caplog):
    folder = tmp_path / "w"
    run = RunHere(settings_of(folder, corpus))
    with run.workspace.in_use(), caplog.at_level(logging.WARNING):
        pipeline(run)
    assert f"nearly nothing is left: {COPIED}" in caplog.text
    assert losses_in(run) == [
        ("source", "hansard", "dedup", "near_duplicate", 40, 39),
        ("source", "posts", "ingest", "too_short", 45, 5),
        ("source", "wiki", None, None, 40, 0),
    ]
    html, markdown = ((folder / "reports" / name).read_text() for name in ("index.html", "index.md"))
    assert "Deduplication keeps 1 of 40 documents (2.5%) of source &#39;hansard&#39;" in html
    assert html.index("hansard") < html.index("What each group loses</h2>")  # among the findings, too
    assert "| hansard | 40 | 0 | 39 | 1 | 2.5% |" in markdown
    assert "keeps 1 of 40 documents" in (folder / "dataset" / "README.md").read_text().replace("\\", "")
    caplog.clear()
    looked = inspect_recipe(Workspace(folder), settings_of(folder, corpus, on_wiped_group="warn"))
    assert looked.losses.details["wiped_groups"] == 1
    assert "hansard" not in caplog.text


def test_the_run_stops_where_it_is_asked_to_and_goes_on_where_it_is_not(tmp_path, corpus):
    run = RunHere(settings_of(tmp_path / "w", corpus, on_wiped_group="stop", by=["source"]))
    with pytest.raises(WipedGroupError) as error:
        prepare(run)
    assert str(error.value).startswith(f"{COPIED}: read some pairs")
    assert str(error.value).endswith("or set ingest.on_wiped_group to warn")
    assert run.built.count("losses corpus") == 2  # of what ingest drops, and of duplicates
    assert "score a" not in run.built
    again = run_of(tmp_path / "w", corpus, by=["source"], on_wiped_group="warn")
    assert not set(again.built) & set(run.built) - {"losses corpus"}
    for unwatched in ([], ["dump"]):  # all are of one dump: of none
        run_of(tmp_path / "w", corpus, on_wiped_group="stop", by=unwatched)


def test_what_ingest_wipes_out_is_not_scored(tmp_path, corpus):
    short = pq.read_table(corpus / "a.parquet").slice(0, 40)
    long = table_of("books", [f"{'many words ' * 10_000}{n}" for n in range(40)])
    pq.write_table(pa.concat_tables([long, short]), corpus / "a.parquet")
    run = RunHere(settings_of(tmp_path / "w", corpus, near_dedup=None, min_chars=100_000, on_wiped_group="stop"))
    said = r"^ingest keeps 0 of 45 documents \(0.0%\) of source 'posts': 45 too short; ingest"
    with pytest.raises(WipedGroupError, match=said):
        prepare(run)
    assert run.built == ["ingest a", "ingest b", "losses corpus"]


@pytest.mark.long
def test_a_new_shard_a_killed_run_and_an_order_of_work_count_the_same(tmp_path, corpus):
    folder, late = tmp_path / "w", (corpus / "b.parquet").rename(tmp_path / "b.parquet")
    run_of(folder, corpus)
    late.rename(corpus / "b.parquet")
    with pytest.raises(KeyboardInterrupt):
        prepare(RunHere(settings_of(folder, corpus), stop_after=5))
    run = run_of(folder, corpus)
    assert {"ingest a", "ingest b"}.isdisjoint(run.built)
    assert run.built[-1] == "losses corpus"
    assert losses_in(run) == losses_in(run_of(tmp_path / "whole", corpus, seed=3))


def test_a_lost_count_is_made_again_and_changes_nothing_else(tmp_path, corpus):
    folder = tmp_path / "w"
    run_of(folder, corpus, near_dedup=None)
    [lost] = (folder / "dropped").glob("a.*.parquet")
    before = lost.read_bytes()
    lost.unlink()
    run = run_of(folder, corpus, near_dedup=None)
    assert run.built == ["ingest a"]
    assert lost.read_bytes() == before
    update_index(run.workspace)
    for name in (".fineweb-mask", "run.json"):  # as of a run that was started
        (folder / name).touch()
    run_of(folder, corpus, near_dedup=None, by=["source"])
    removed = {one.folder: one.files for one in collect_garbage(str(folder), [run.settings])}
    assert removed["losses"] == 3  # those of the columns that were asked for, after each step
    [losses] = [job for job, _ in run.found["dedup"] if job.kind == "losses"]
    assert RunHere(run.settings).done(losses) is not None


def test_documents_without_a_vector_are_a_loss_of_the_group(tmp_path, corpus):
    run_of(tmp_path / "w", corpus, near_dedup=None)
    unknown = ["\u0416" * (40 + number) for number in range(30)]  # the encoder has seen no such letter
    pq.write_table(table_of("signs", unknown), corpus / "c.parquet")
    run = run_of(tmp_path / "w", corpus, near_dedup=None)
    assert ("source", "signs", "embed", "bad_vector", 30, 30) in losses_in(run)


def test_a_column_of_very_many_values_ends_the_run_after_ingest(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr("fineweb_mask.tasks.losses.MOST_GROUPS", 30)
    pages = [f"page {n}" for n in range(40)]
    pq.write_table(table_of("wiki", texts_of("wiki"), page=pages), corpus / "a.parquet")
    run = RunHere(settings_of(tmp_path / "w", corpus, by=["page"]))
    with pytest.raises(SettingsError, match=r"report.by: the column 'page' has too many values"):
        prepare(run)
    assert run.built == ["ingest a", "ingest b"]
    run_of(tmp_path / "w", corpus, near_dedup=None)  # nobody asks for it: it is left out
