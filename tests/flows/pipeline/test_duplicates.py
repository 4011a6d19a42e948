"""Duplicates across shards: which are dropped, what a new shard changes, what a killed run goes on from."""

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.dataset import materialize
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.flows.status.garbage import collect_garbage
from fineweb_mask.tasks.catalog.query import open_catalog
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.dedup.duplicates import no_duplicates
from fineweb_mask.tasks.workspace.listing import update_index
from fineweb_mask.tasks.workspace.stage_parquet import read_duplicates
from tests.flows.pipeline.run_here import RunHere, recipe_of, text_of, write_shard

COVERED = {"solver": "mean_field", "metrics": "facility", "select_ratio": 0.3}


def shards_in(folder, source, **rows):
    """A folder with shards of some of the sample's rows."""
    folder.mkdir()
    for name, some in rows.items():
        write_shard(folder, source, name, some)
    return folder


def edited(path):
    """Ten long texts of a file, each with other last words."""
    table = pq.read_table(path)
    texts = table["text"].to_pylist()
    long = [row for row, text in enumerate(texts) if text and len(set(text.split())) > 150][:10]
    copies = [f"{texts[row].rsplit(' ', 2)[0]} changed changed" for row in long]
    return table.take(long).set_column(table.column_names.index("text"), "text", [copies])


def settings_of(folder, corpus, **ingest):
    usual = {"min_chars": 1, "near_dedup": 0.7}
    return recipe_of(folder, corpus, ingest=usual | ingest, selection={"select_ratio": 0.9})


def selected(folder, corpus, *, seed=None, **ingest):
    """Run all stages as far as the selection; return the run and what it selected."""
    run = RunHere(settings_of(folder, corpus, **ingest), seed=seed)
    return run, select(run, prepare(run))


def prepared(folder, corpus, *, seed=None, **ingest):
    run = RunHere(settings_of(folder, corpus, near_dedup=None, **ingest), seed=seed)
    prepare(run)
    return run


def read(run, file):
    return pq.read_table(run.workspace.resolve(file))


def quality_of_texts(run, shards):
    for shard in shards:
        yield from zip(
            *(
                read(run, file)[name].to_pylist()
                for file, name in ((shard.documents, "text"), (shard.scores, "quality"))
            ),
            strict=True,
        )


def fingerprints(run, names="abc"):
    return {name: run.duplicates[name].fingerprint for name in names}


@pytest.fixture
def corpus(tmp_path, sample_corpus):
    """Three shards, each of which repeats ten documents of the one before."""
    return shards_in(tmp_path / "corpus", sample_corpus, a=range(40), b=range(30, 70), c=range(60, 100))


def test_the_copy_of_the_first_shard_is_kept_and_quarantined_shards_do_not_count(tmp_path, corpus):
    path = corpus / "b.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    run = prepared(tmp_path / "w", corpus)
    assert list(run.quarantined) == ["b"]
    assert set(run.duplicates) == {"a", "c"}
    path.write_bytes(whole)
    again = prepared(tmp_path / "w", corpus)
    assert again.duplicates["a"].rows == 0
    assert min(again.duplicates[name].rows for name in "bc") >= 8


@pytest.mark.parametrize("scope", ["shard", "off"])
def test_without_a_comparison_of_shards_none_is_made(tmp_path, corpus, scope):
    run = prepared(tmp_path / "one", corpus, exact_dedup=scope)
    assert run.duplicates == {name: no_duplicates(name) for name in "abc"}
    assert "dedup corpus" not in run.built


def test_near_duplicates_are_no_candidates_and_are_counted(tmp_path, sample_corpus):
    pytest.importorskip("rensa")
    corpus, folder = shards_in(tmp_path / "corpus", sample_corpus, b=range(60)), tmp_path / "w"
    copied = pq.read_table(corpus / "b.parquet").take([50, 51])
    pq.write_table(pa.concat_tables([edited(corpus / "b.parquet"), copied]), corpus / "c.parquet")
    run, selection = selected(folder, corpus, seed=0)
    counts = selection.counts
    assert counts.dropped["duplicate"] >= 2
    assert counts.dropped["near_duplicate"] >= 10
    assert counts.documents_in == counts.selected + counts.not_selected + sum(counts.dropped.values())
    assert counts.amounts["eligible"].documents == counts.documents_eligible < counts.documents_ingested

    write_catalog(run.workspace, shard_files(run))
    with open_catalog(run.workspace, "1GB") as catalog:
        twins = catalog.execute(
            "SELECT near.shard, kept.shard, kept.text, near.text FROM fates AS near "
            "JOIN documents AS kept ON kept.shard = near.twin_shard AND kept.row = near.twin_row "
            "WHERE near.reason = 'near_duplicate'"
        ).fetchall()
        listed = catalog.execute(
            "SELECT reason, count(*), count(text) FROM fates WHERE stage = 'dedup' GROUP BY ALL"
        ).fetchall()
    known = {reason: counts.dropped[reason] for reason in ("duplicate", "near_duplicate")}
    assert {reason: rows for reason, rows, texts in listed if rows == texts} == known
    assert len(twins) == counts.dropped["near_duplicate"]
    assert ("c", "b") in {(dropped, kept) for dropped, kept, *_ in twins}
    assert all(kept.split()[:20] == dropped.split()[:20] for _, _, kept, dropped in twins)

    write_shard(corpus, sample_corpus, "d", range(100, 130))
    again, grown = selected(folder, corpus, seed=1)
    built = {name for name in again.built if name.split()[0] in ("sketch", "dedup")}
    assert built == {"sketch d", "dedup corpus"}
    assert fingerprints(again, "bc") == fingerprints(run, "bc")
    update_index(run.workspace)
    for name in (".fineweb-mask", "run.json"):  # as of a run that was started
        (folder / name).touch()
    removed = {one.folder: one.files for one in collect_garbage(str(folder), [settings_of(folder, corpus)])}
    assert removed["duplicates"] == 1  # of the first run
    assert "signatures" not in removed
    assert selected(folder, corpus)[0].built == []
    assert all((folder / shard.duplicates.path).is_file() for shard in grown.shards if shard.duplicates.path)
    selected(folder, corpus, near_dedup=None)
    off = settings_of(folder, corpus, near_dedup=None)
    assert {one.folder: one.files for one in collect_garbage(str(folder), [off])}["signatures"] == 3
    assert not (folder / "signatures").exists()


@pytest.mark.long
def test_a_run_that_is_killed_while_it_compares_goes_on(tmp_path, sample_corpus):
    pytest.importorskip("rensa")
    corpus = shards_in(tmp_path / "corpus", sample_corpus, a=range(20), b=range(10, 30))
    built, before = [], None
    while before != built:
        before, run = [*built], RunHere(settings_of(tmp_path / "w", corpus), stop_after=2)
        with suppress(KeyboardInterrupt):
            select(run, prepare(run))
        built += run.built
    assert len(built) == len(set(built)) > 8
    assert {"sketch a", "sketch b", "dedup corpus"} <= set(built)


@pytest.mark.long
@pytest.mark.parametrize("near", [None, 0.7])
def test_one_page_of_each_url_is_kept_with_and_without_near_duplicates(tmp_path, sample_corpus, near):
    pytest.importorskip("rensa")
    corpus, folder = shards_in(tmp_path / "corpus", sample_corpus, a=range(40)), tmp_path / "w"
    table = pq.read_table(corpus / "a.parquet")
    others = [" ".join(reversed(text.split())) for text in table["text"].to_pylist()[:10]]
    pages = table.slice(0, 10).set_column(table.column_names.index("text"), "text", [others])
    pq.write_table(pages, corpus / "b.parquet")
    options = {"near_dedup": near, "url_dedup": True}
    run, selection = selected(folder, corpus, **options)
    dropped = selection.counts.dropped
    assert dropped["same_url"] >= 9
    write_catalog(run.workspace, shard_files(run))
    with open_catalog(run.workspace, "1GB") as catalog:
        counted = dict(catalog.execute("SELECT reason, count(*) FROM fates GROUP BY ALL").fetchall())
        same = catalog.execute(
            "SELECT near.url = kept.url FROM fates AS near JOIN documents AS kept "
            "ON kept.shard = near.twin_shard AND kept.row = near.twin_row WHERE near.reason = 'same_url'"
        ).fetchall()
    assert counted["same_url"] == len(same) == dropped["same_url"]
    assert set(same) == {(True,)}
    assert selected(folder, corpus, **options)[0].built == []
    copies = {"exempt": {"dump": pc.unique(table["dump"]).to_pylist()}}
    _, exempted = selected(tmp_path / "exempted", corpus, **options, copies=copies)
    assert not any(exempted.counts.dropped.get(reason) for reason in ("same_url", "near_duplicate"))


@pytest.mark.parametrize(("kind", "scope"), [("workspace", "corpus"), ("file", "shard")])
def test_near_duplicates_of_another_corpus_are_dropped_and_its_own_documents_stay(tmp_path, sample_corpus, kind, scope):
    pytest.importorskip("rensa")
    other = shards_in(tmp_path / "other", sample_corpus, a=range(40))
    corpus = shards_in(tmp_path / "corpus", sample_corpus, a=range(40, 60))
    copies = edited(other / "a.parquet")
    pq.write_table(pa.concat_tables([copies, copies, pq.read_table(corpus / "a.parquet")]), corpus / "a.parquet")
    against = other
    if kind == "workspace":
        against = tmp_path / "earlier"
        selected(against, other)
    options = {"against": [str(against)], "exact_dedup": scope}
    run, selection = selected(tmp_path / "w", corpus, **options)
    assert list(run.duplicates) == ["a"]
    dropped = read_duplicates(run.workspace, run.duplicates["a"]).to_pylist()
    twins = {row["twin_row"] for row in dropped if (row["twin_shard"] or "").startswith("against-")}
    assert len(twins) == 10
    assert 10 <= selection.counts.dropped["near_duplicate"] < 20
    assert selected(tmp_path / "w", corpus, **options)[0].built == []


def test_with_every_second_row_a_duplicate_all_is_as_in_a_corpus_without_these_rows(tmp_path):
    """What a stage writes of a document is found by its `row`, not by its place."""
    texts = [text_of(number) for number in range(120)]
    chosen = {}
    for name, parts in (("copies", (texts[::2], texts)), ("none", (texts[::2], texts[1::2]))):
        corpus = tmp_path / name
        corpus.mkdir()
        for shard, some in zip("ab", parts, strict=True):
            pq.write_table(pa.table({"text": some, "dump": ["x"] * len(some)}), corpus / f"{shard}.parquet")
        run = RunHere(recipe_of(tmp_path / f"w-{name}", corpus, selection=COVERED))
        chosen[name] = run, select(run, prepare(run))
    (run, ours), (other, theirs) = chosen.values()
    assert [file.duplicates.rows for file in ours.shards] == [0, 60]
    for own, alone in zip(ours.shards, theirs.shards, strict=True):
        kept = pc.invert(pc.is_in(pa.array(range(own.rows)), pa.array(range(0, 2 * own.duplicates.rows, 2))))
        for stage in ("scores", "embeddings"):
            found, expected = (read(one, getattr(files, stage)) for one, files in ((run, own), (other, alone)))
            assert found.drop("row").equals(expected.drop("row"))
        masks = read(run, own.masks)
        assert masks.filter(kept).drop("row").equals(read(other, alone.masks).drop("row"))
        assert not pc.any(masks["selected"].filter(pc.invert(kept))).as_py()
    materialize(run, ours)
    written = pq.read_table(run.workspace.dataset / "data").to_pylist()
    qualities = dict(quality_of_texts(other, theirs.shards))
    assert len(written) == sum(file.details["blocks"][0]["selected"] for file in ours.groups)
    assert all(row["quality"] == qualities[row["text"]] for row in written)
