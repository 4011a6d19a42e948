"""A group that is wiped out is named, and stops the run if asked."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import pipeline, prepare
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.pipeline.losses import WipedGroupError
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.status.garbage import collect_garbage
from fineweb_mask.flows.status.inspection import look_at
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import (
    EmbeddingSettings,
    IngestSettings,
    MaterializeSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.tasks.catalog.query import open_catalog
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.pipeline.run_here import RunHere

COPIED = "deduplication keeps 1 of 40 documents (2.5%) of source 'hansard': 39 near-duplicates"


def text_of(seed):
    """A text of 100 words that are drawn at random."""
    letters = np.random.default_rng(seed).choice(list("abcdefgh"), (100, 5))
    return " ".join("".join(word) for word in letters)


def table_of(source, numbers, **columns):
    texts = [text_of([len(source), number]) for number in numbers]
    given = {"text": texts, "id": [f"{source}-{n}" for n in numbers], "source": [source] * len(texts), **columns}
    return pa.table({name: pa.array(values) for name, values in given.items()})


@pytest.fixture
def corpus(tmp_path):
    """Three sources, of which hansard has 40 copies of one page with other last words; some pages are too short."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    copies = [f"{text_of(0)} {text_of([1, number])[:11]}" for number in range(40)]
    short = table_of("posts", range(90, 95)).set_column(0, "text", pa.array(["short"] * 5))
    hansard = table_of("hansard", range(40)).set_column(0, "text", pa.array(copies))
    pq.write_table(pa.concat_tables([table_of("wiki", range(40)), hansard.slice(0, 10)]), folder / "a.parquet")
    pq.write_table(pa.concat_tables([table_of("posts", range(40)), short, hansard.slice(10)]), folder / "b.parquet")
    return folder


def settings_of(folder, corpus, **ingest):
    return PipelineSettings(
        workspace=str(folder),
        source=SourceSettings(path=str(corpus)),
        ingest=IngestSettings(**{"min_chars": 20, "near_dedup": "minhash"} | ingest),
        quality=QualitySettings(scorers=[ColumnScorerSettings(column="n_chars")]),
        embedding=EmbeddingSettings(static_dimensions=16),
        selection=PipelineSelectionSettings(select_ratio=0.5, solver="top_quality", device="cpu"),
        materialize=MaterializeSettings(layout="flat"),
    )


def losses_in(run):
    workspace = run.workspace
    write_catalog(workspace, shard_files(run), run.losses)
    with open_catalog(workspace, "1GB") as catalog:
        return catalog.execute("FROM losses").fetchall()


def test_a_source_of_near_copies_is_named_everywhere(tmp_path, corpus, caplog):
    pytest.importorskip("rensa")
    folder = tmp_path / "w"
    run = RunHere(settings_of(folder, corpus))
    with caplog.at_level(logging.WARNING):
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


def test_the_run_stops_where_it_is_asked_to_and_goes_on_where_it_is_not(tmp_path, corpus):
    pytest.importorskip("rensa")
    folder = tmp_path / "w"
    stopping = settings_of(folder, corpus, on_wiped_group="stop", groups=["source"])
    run = RunHere(stopping)
    with pytest.raises(WipedGroupError) as error:
        prepare(run)
    assert str(error.value).startswith(f"{COPIED}: read some pairs")
    assert str(error.value).endswith("or set ingest.on_wiped_group to warn")
    assert run.built.count("losses corpus") == 2  # what ingest drops is looked at before anything is scored
    assert run.built.index("losses corpus") < run.built.index("score a")
    again = RunHere(settings_of(folder, corpus, groups=["source"], on_wiped_group="warn"))
    prepare(again)
    assert set(again.built) <= {"losses corpus"}
    for unwatched in ([], ["dump"]):  # all are of one dump: of none
        prepare(RunHere(settings_of(folder, corpus, on_wiped_group="stop", groups=unwatched)))


def test_what_ingest_wipes_out_is_not_scored(tmp_path, corpus):
    settings = settings_of(tmp_path / "w", corpus, near_dedup="off", min_chars=1_000_000, on_wiped_group="stop")
    short = pq.read_table(corpus / "a.parquet").slice(0, 40)
    long = short.set_column(0, "text", pa.array([f"{'many words ' * 100_000}{n}" for n in range(40)]))
    long = long.set_column(2, "source", pa.array(["books"] * 40))
    pq.write_table(pa.concat_tables([long, short]), corpus / "a.parquet")
    run = RunHere(settings)
    with pytest.raises(
        WipedGroupError, match=r"^ingest keeps 0 of 45 documents \(0.0%\) of source 'posts': 45 too short; ingest"
    ):
        prepare(run)
    assert run.built == ["ingest a", "ingest b", "losses corpus"]


def test_a_new_shard_a_killed_run_and_an_order_of_work_count_the_same(tmp_path, corpus):
    pytest.importorskip("rensa")
    folder, late = tmp_path / "w", (corpus / "b.parquet").rename(tmp_path / "b.parquet")
    prepare(RunHere(settings_of(folder, corpus)))
    late.rename(corpus / "b.parquet")
    built = []
    for _ in range(40):
        run = RunHere(settings_of(folder, corpus), stop_after=1)
        try:
            prepare(run)
            break
        except KeyboardInterrupt:
            built += run.built
    assert run.built == ["losses corpus"]
    assert "ingest a" not in built
    whole = RunHere(settings_of(tmp_path / "whole", corpus), seed=3)
    prepare(whole)
    assert losses_in(run) == losses_in(whole)


def test_a_lost_count_is_made_again_and_changes_nothing_else(tmp_path, corpus):
    folder = tmp_path / "w"
    settings = settings_of(folder, corpus, near_dedup="off")
    prepare(RunHere(settings))
    [lost] = (folder / "outcomes").glob("a.*.parquet")
    before = lost.read_bytes()
    lost.unlink()
    run = RunHere(settings)
    prepare(run)
    assert run.built == ["ingest a"]
    assert lost.read_bytes() == before
    update_index(Workspace(folder))
    (folder / "run.json").write_text("{}")  # says that a run was begun
    prepare(RunHere(settings_of(folder, corpus, near_dedup="off", groups=["source"])))
    assert {one.folder: one.files for one in collect_garbage(str(folder), [settings])}["losses"] == 1
    assert RunHere(settings, listing=Listing(Workspace(folder))).done(_job_of(run)) is not None


def _job_of(run):
    return next(job for job, _ in run.found["dedup"] if job.kind == "losses")


def test_looking_at_a_workspace_stops_nothing(tmp_path, corpus, caplog):
    pytest.importorskip("rensa")
    settings = settings_of(tmp_path / "w", corpus)
    prepare(RunHere(settings))
    caplog.clear()
    looked = look_at(Workspace(settings.workspace), settings_of(tmp_path / "w", corpus, on_wiped_group="warn"))
    prepare(looked)
    assert looked.losses.details["wiped_groups"] == 1
    assert "hansard" not in caplog.text


def test_documents_without_a_vector_are_a_loss_of_the_group(tmp_path, corpus):
    settings = settings_of(tmp_path / "w", corpus, near_dedup="off")
    prepare(RunHere(settings))
    unknown = pa.array(["\u0416" * (40 + number) for number in range(30)])  # the encoder has seen no such letter
    pq.write_table(table_of("signs", range(30)).set_column(0, "text", unknown), corpus / "c.parquet")
    run = RunHere(settings)
    prepare(run)
    assert ("source", "signs", "select", "bad_vector", 30, 30) in losses_in(run)


def test_a_column_of_very_many_values_ends_the_run_in_the_first_shard(tmp_path, corpus):
    many = table_of("wiki", range(40), page=[f"page {n}" for n in range(40)])
    rows = [n % 40 for n in range(1_100)]
    many = many.take(rows).set_column(3, "page", pa.array([f"page {n}" for n in range(1_100)]))
    pq.write_table(many, corpus / "a.parquet")
    run = RunHere(settings_of(tmp_path / "w", corpus, groups=["page"]))
    with pytest.raises(SettingsError, match=r"ingest.groups: the column 'page' has too many values"):
        prepare(run)
    assert run.built == []
    prepare(RunHere(settings_of(tmp_path / "w", corpus, near_dedup="off")))  # nobody asks for it: it is left out
    again = RunHere(settings_of(tmp_path / "w", corpus, near_dedup="off", groups=["page"]))
    with pytest.raises(SettingsError, match=r"ingest.groups: the column 'page' has too many values"):
        prepare(again)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["nowhere"], "ingest.groups.0: no document will have a column 'nowhere', it may be one of"),
        (["source", "weight"], "ingest.groups.1: 'weight' must hold text, whole numbers or booleans, its type is dou"),
    ],
)
def test_a_wrong_column_is_refused_before_any_work(tmp_path, corpus, columns, message):
    table = pq.read_table(corpus / "a.parquet")
    pq.write_table(table.append_column("weight", pa.array([0.5] * len(table))), corpus / "a.parquet")
    with pytest.raises(SettingsError, match=message):
        check_inputs(settings_of(tmp_path / "w", corpus, near_dedup="off", groups=columns))


@pytest.mark.parametrize(
    ("ingest", "message"),
    [
        ({"on_wiped_group": "ask"}, "'warn' or 'stop'"),
        ({"groups": ["text"]}, "ingest.groups.0: received 'text': the text itself cannot be a group"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, corpus, ingest, message):
    with pytest.raises(ValueError, match=message):
        settings_of(tmp_path / "w", corpus, **ingest)
