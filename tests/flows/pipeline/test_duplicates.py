"""Duplicates across shards: which are dropped, what a new shard changes, what a killed run goes on from."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.dataset import materialize
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.flows.status.garbage import collect_garbage
from fineweb_mask.models.settings import (
    EmbeddingSettings,
    IngestSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.tasks.catalog.query import open_catalog
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.dedup import buckets
from fineweb_mask.tasks.dedup.duplicates import no_duplicates
from fineweb_mask.tasks.workspace.listing import update_index
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.pipeline.run_here import RunHere, write_shard

SCORER = ColumnScorerSettings(column="token_count")


def near_settings(folder, corpus, **ingest):
    return PipelineSettings(
        workspace=str(folder),
        source=SourceSettings(path=str(corpus)),
        ingest=IngestSettings(min_chars=1, **{"near_dedup": "minhash"} | ingest),
        quality=QualitySettings(scorers=[SCORER]),
        embedding=EmbeddingSettings(static_dimensions=16),
        selection=PipelineSelectionSettings(select_ratio=0.9, solver="top_quality", device="cpu"),
    )


def exact_settings(folder, corpus, **ingest):
    return near_settings(folder, corpus, near_dedup="off", **ingest)


@pytest.fixture
def corpus(tmp_path, sample_corpus):
    """Three shards, each of which repeats ten documents of the one before."""
    (tmp_path / "corpus").mkdir()
    for number, name in enumerate("abc"):
        write_shard(tmp_path / "corpus", sample_corpus, name, range(30 * number, 30 * number + 40))
    return tmp_path / "corpus"


def test_the_copy_of_the_shard_that_came_first_is_kept_and_quarantined_shards_do_not_count(tmp_path, corpus):
    path = corpus / "b.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    run = RunHere(exact_settings(tmp_path / "w", corpus))
    prepare(run)
    assert list(run.quarantined) == ["b"]
    assert set(run.duplicates) == {"a", "c"}
    path.write_bytes(whole)
    again = RunHere(exact_settings(tmp_path / "w", corpus))
    prepare(again)
    assert again.duplicates["a"].rows == again.duplicates["c"].rows == 0
    assert again.duplicates["b"].rows >= 15  # it came last: those of a and of c


def test_a_large_corpus_is_compared_in_buckets_with_the_same_result(tmp_path, corpus, monkeypatch):
    one = RunHere(exact_settings(tmp_path / "one", corpus))
    prepare(one)
    monkeypatch.setitem(buckets.COMPARISONS, "repeats", buckets.COMPARISONS["repeats"]._replace(most=40))
    many = RunHere(exact_settings(tmp_path / "many", corpus), seed=0)
    prepare(many)
    assert [name for name in one.built if name.startswith("repeats")] == ["repeats 0-of-1"]
    assert sorted(name for name in many.built if name.startswith("repeats")) == [f"repeats {n}-of-4" for n in range(4)]
    assert {name: file.fingerprint for name, file in one.duplicates.items()} == {
        name: file.fingerprint for name, file in many.duplicates.items()
    }


@pytest.mark.parametrize("scope", ["shard", "off"])
def test_without_a_comparison_nothing_is_looked_for(tmp_path, corpus, scope):
    run = RunHere(exact_settings(tmp_path / "w", corpus, exact_dedup=scope))
    prepare(run)
    assert run.duplicates == {name: no_duplicates(name) for name in "abc"}
    assert not [name for name in run.built if name.split()[0] in {"hash", "repeats", "dedup"}]


def near_deduplicated(folder, corpus, *, seed=None, stop_after=None, **ingest):
    """Run all stages but the report; return the run and what it selected."""
    run = RunHere(near_settings(folder, corpus, **ingest), seed=seed, stop_after=stop_after)
    selection = select(run, prepare(run))
    materialize(run, selection)
    return run, selection


def edited(texts, words):
    """Texts of which the last words are other ones."""
    return [f"{text.rsplit(' ', words)[0]} {'changed ' * words}" for text in texts]


@pytest.mark.parametrize("exact_dedup", ["corpus", "shard"])
def test_near_duplicates_are_no_candidates_and_are_counted(tmp_path, sample_corpus, exact_dedup):
    pytest.importorskip("rensa")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_shard(corpus, sample_corpus, "b", range(60))
    table = pq.read_table(corpus / "b.parquet")
    texts = table["text"].to_pylist()
    long = [row for row, text in enumerate(texts) if len(set(text.split())) > 150][:10]
    copies = table.take(long).set_column(
        table.column_names.index("text"), "text", [edited([texts[row] for row in long], 2)]
    )
    pq.write_table(pa.concat_tables([copies, table.take([50, 51])]), corpus / "c.parquet")

    folder = tmp_path / "w"
    run, selection = near_deduplicated(folder, corpus, seed=0, exact_dedup=exact_dedup)
    exact = 2 if exact_dedup == "corpus" else 0
    assert selection.counts.dropped.get("duplicate", 0) >= exact
    assert selection.counts.dropped["near_duplicate"] >= 12 - exact
    tried = {one["threshold"]: one["documents"] for one in run.near.details["tried"]}
    assert tried[run.near.details["threshold"]] == selection.counts.dropped["near_duplicate"]
    counts = selection.counts
    assert counts.documents_in == counts.selected + counts.not_selected + sum(counts.dropped.values())
    assert counts.amounts["eligible"].documents == counts.documents_eligible < counts.documents_ingested

    workspace = Workspace(folder)
    write_catalog(workspace, shard_files(run))
    with open_catalog(workspace, "1GB") as catalog:
        drops = catalog.execute("SELECT sum(documents) FROM drops WHERE reason = 'near_duplicate'").fetchone()
        assert drops == (counts.dropped["near_duplicate"],)
        twins = catalog.execute(
            "SELECT near.shard, kept.shard, kept.text, dropped.text FROM near_duplicates AS near "
            "JOIN documents AS kept ON kept.shard = twin_shard AND kept.row = twin_row "
            "JOIN documents AS dropped ON dropped.shard = near.shard AND dropped.row = near.row"
        ).fetchall()
        listed = catalog.execute("SELECT stage, reason, count(*), count(text) FROM dropped GROUP BY ALL").fetchall()
        assert {(reason, rows) for stage, reason, rows, texts in listed if rows == texts and stage == "dedup"} == {
            (reason, counts.dropped[reason])
            for reason in ("duplicate", "near_duplicate")
            if exact_dedup == "corpus" or reason == "near_duplicate"
        }
    assert len(twins) == counts.dropped["near_duplicate"]
    assert {(dropped, kept) for dropped, kept, *_ in twins} >= {("c", "b")}
    assert all(kept.split()[:20] == dropped.split()[:20] for _, _, kept, dropped in twins)

    write_shard(corpus, sample_corpus, "a", range(100, 130))  # first by its name, later in its arrival
    again, grown = near_deduplicated(folder, corpus, seed=1, exact_dedup=exact_dedup)
    built = {name for name in again.built if name.split()[0] in ("signatures", "pairs", "verified", "near_dedup")}
    assert built == {"signatures a", "pairs 0-of-1", "verified 0-of-1", "near_dedup corpus"}
    assert {name: again.duplicates[name].fingerprint for name in "bc"} == {
        name: run.duplicates[name].fingerprint for name in "bc"
    }
    assert near_deduplicated(folder, corpus, exact_dedup=exact_dedup)[0].built == []
    update_index(workspace)
    (folder / "run.json").write_text("{}")  # says that a run was begun
    used = {shard.duplicates.path for shard in grown.shards if shard.duplicates.path}
    kept = near_settings(folder, corpus, exact_dedup=exact_dedup)
    removed = {one.folder: one.files for one in collect_garbage(str(folder), [kept])}
    assert removed["pairs"] == 5  # the two buckets of both runs, and the list of the first
    assert removed["shingles"] == 5  # of two shards, and of three
    assert {"signatures", "near_duplicates"}.isdisjoint(removed)
    assert near_deduplicated(folder, corpus, exact_dedup=exact_dedup)[0].built == []
    assert all((folder / path).is_file() for path in used)
    off = near_settings(folder, corpus, exact_dedup=exact_dedup, near_dedup="off")
    near_deduplicated(folder, corpus, exact_dedup=exact_dedup, near_dedup="off")
    removed = {one.folder: one.files for one in collect_garbage(str(folder), [off])}
    assert removed["signatures"] == 3
    assert not any((folder / name).exists() for name in ("signatures", "pairs", "near_duplicates"))


def test_a_run_that_is_killed_while_it_compares_goes_on(tmp_path, sample_corpus):
    pytest.importorskip("rensa")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_shard(corpus, sample_corpus, "a", range(40))
    write_shard(corpus, sample_corpus, "b", range(30, 60))
    settings = near_settings(tmp_path / "w", corpus)
    built = []
    for _ in range(40):
        run = RunHere(settings, stop_after=1)
        try:
            materialize(run, select(run, prepare(run)))
            break
        except KeyboardInterrupt:
            built += run.built
    assert len(built) == len(set(built)) > 10
    stages = {"signatures a", "signatures b", "pairs 0-of-1", "shingles a", "shingles b", "verified 0-of-1"}
    assert {*stages, "near_dedup corpus"} <= set(built)
    assert run.built == ["materialize dataset"]


@pytest.mark.long
def test_one_page_of_each_url_is_kept_with_and_without_near_duplicates(tmp_path, sample_corpus):
    pytest.importorskip("rensa")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_shard(corpus, sample_corpus, "a", range(40))
    table = pq.read_table(corpus / "a.parquet")
    others = [" ".join(reversed(text.split())) for text in table["text"].to_pylist()[:10]]
    pages = table.slice(0, 10).set_column(table.column_names.index("text"), "text", [others])
    pq.write_table(pages, corpus / "b.parquet")
    for near in ("off", "minhash"):
        folder = tmp_path / near
        run, selection = near_deduplicated(folder, corpus, near_dedup=near, url_dedup=True)
        dropped = selection.counts.dropped
        assert dropped["same_url"] >= 9
        write_catalog(Workspace(folder), shard_files(run))
        with open_catalog(Workspace(folder), "1GB") as catalog:
            counted = dict(catalog.execute("SELECT reason, sum(documents) FROM drops GROUP BY ALL").fetchall())
            assert {reason: counted[reason] for reason in dropped if reason in counted} == {
                reason: count for reason, count in dropped.items() if count
            }
            same = catalog.execute(
                "SELECT one.url = kept.url FROM near_duplicates AS near JOIN documents AS one USING (shard, row) "
                "JOIN documents AS kept ON kept.shard = twin_shard AND kept.row = twin_row WHERE similarity IS NULL"
            ).fetchall()
            listed = catalog.execute("SELECT count(*) FROM dropped WHERE reason = 'same_url'").fetchone()
        assert same == [(True,)] * dropped.get("same_url", 0)
        assert listed == (dropped.get("same_url", 0),)
        assert near_deduplicated(folder, corpus, near_dedup=near, url_dedup=True)[0].built == []
        dumps = {"dump": pc.unique(table["dump"]).to_pylist()}
        _, exempted = near_deduplicated(
            tmp_path / f"{near} exempted", corpus, near_dedup=near, url_dedup=True, copies={"exempt": dumps}
        )
        assert not any(exempted.counts.dropped.get(reason) for reason in ("same_url", "near_duplicate"))


@pytest.mark.parametrize("kind", ["workspace", "file"])
def test_near_duplicates_of_another_corpus_are_dropped_and_its_own_documents_stay(tmp_path, sample_corpus, kind):
    pytest.importorskip("rensa")
    other, corpus = tmp_path / "other", tmp_path / "corpus"
    for folder in (other, corpus):
        folder.mkdir()
    write_shard(other, sample_corpus, "a", range(40))
    texts = pq.read_table(other / "a.parquet")["text"].to_pylist()
    long = [row for row, text in enumerate(texts) if text and len(set(text.split())) > 150][:10]
    write_shard(corpus, sample_corpus, "a", range(40, 80))
    table = pq.read_table(corpus / "a.parquet")
    copies = table.slice(0, 10).set_column(
        table.column_names.index("text"), "text", [edited([texts[row] for row in long], 2)]
    )
    pq.write_table(pa.concat_tables([copies, copies, table.slice(10)]), corpus / "a.parquet")
    against = str(other)
    if kind == "workspace":
        near_deduplicated(tmp_path / "earlier", other)
        against = str(tmp_path / "earlier")
    alone, _ = near_deduplicated(tmp_path / "alone", corpus)
    run, selection = near_deduplicated(tmp_path / "w", corpus, against=[against])
    assert alone.duplicates["a"].details.get("near_duplicate", 0) < 10
    assert list(run.duplicates) == ["a"]
    dropped = pq.read_table(run.workspace.resolve(run.duplicates["a"])).to_pylist()
    twins = {row["twin_row"] for row in dropped if (row["twin_shard"] or "").startswith("against-")}
    assert len(twins) == 10
    assert selection.counts.dropped["near_duplicate"] >= 10
    assert near_deduplicated(tmp_path / "w", corpus, against=[against])[0].built == []
