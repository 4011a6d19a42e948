"""Documents that lists name are not selected; what is made again for it, and what is erased."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import pipeline
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.pipeline.records import shard_files, summarize
from fineweb_mask.flows.status.garbage import collect_garbage
from fineweb_mask.tasks.catalog.query import open_catalog
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.workspace.listing import update_index
from tests.flows.pipeline.run_here import RunHere, recipe_of, text_of

SELECTION = {"select_ratio": 0.5, "solver": "top_quality", "device": "cpu", "blocks": "order", "block_size": 30}


@pytest.fixture
def run(tmp_path):
    """Return the function that runs all stages over three shards of 30 documents, and what was selected."""
    (tmp_path / "corpus").mkdir()
    for name in "abc":
        rows = range(30)
        columns = {
            "text": [text_of(ord(name), row) for row in rows],
            "id": [f"{name}{row}" for row in rows],
            "url": [f"https://{name}.org/{row}" for row in rows],
        }
        pq.write_table(pa.table(columns), tmp_path / "corpus" / f"{name}.parquet")

    def call(lines="", **ingest):
        if lines:
            (tmp_path / "list.txt").write_text(lines)
            ingest["exclude"] = [str(tmp_path / "list.txt")]
        settings = recipe_of(tmp_path / "w", tmp_path / "corpus", ingest=ingest, selection=SELECTION)
        run = RunHere(settings, shards=check_inputs(settings).shards)
        with run.workspace.in_use():
            made = pipeline(run)
            write_catalog(run.workspace, shard_files(run))
        return run, summarize(run, *made)

    return call


def selected(run):
    with open_catalog(run.workspace, "1GB") as connection:
        return {row[0] for row in connection.sql("SELECT id FROM selected").fetchall()}


def built(run):
    """Return the jobs that compute something with documents or models, beside those of `exclude`."""
    kinds = ("ingest", "dedup", "fit", "score", "embed", "select")
    return {name for name in run.built if name.startswith(kinds)}


def test_only_blocks_of_shards_that_hold_what_is_named_are_selected_again_and_no_model_runs(run):
    first, before = run()
    assert {name.split()[0] for name in built(first)} >= {"ingest", "dedup", "score", "embed", "select"}
    chosen = sorted(name for name in selected(first) if name.startswith("b"))[0]
    again, summary = run(f"b.org/{chosen[1:]}\nb0\n")
    assert {name.split()[0] for name in built(again)} == {"select"}
    assert len(built(again)) == 1 < len([name for name in built(first) if name.startswith("select")])
    named = {chosen, "b0"}
    assert not selected(again) & named
    assert selected(first) - selected(again) <= {name for name in selected(first) if name.startswith("b")}
    assert summary.dropped == before.dropped | {"excluded": len(named)}
    counts = summary.counts
    assert counts.documents_in == counts.selected + counts.not_selected + sum(counts.dropped.values())
    with open_catalog(again.workspace, "1GB") as connection:
        fates = connection.sql("SELECT id FROM fates WHERE reason = 'excluded' AND stage = 'dedup'").fetchall()
    assert {name for (name,) in fates} == named
    renamed, _ = run("b0\n\nb0\nb.org/" + chosen[1:])
    assert not built(renamed)


def test_a_list_that_names_nothing_is_told(run, caplog):
    run("https://example.org/\n")
    assert "ingest.exclude: no document has a name of" in caplog.text


def test_what_is_erased_is_in_no_file_once_garbage_is_collected(run, tmp_path):
    run()
    texts = [text_of(ord("b"), row) for row in (3, 4)]
    for lines, rows in (("b.org/3", [3]), ("b.org/3\nb4", [3, 4])):
        found, summary = run(lines, erase=True, keep_dropped=True)
        assert {name for name in built(found) if name.startswith("ingest")} == {"ingest b"} or rows == [3]
        assert summary.dropped["excluded"] == len(rows)
        update_index(found.workspace)
        (tmp_path / "w" / "run.json").write_text("{}")  # says that a run was started
        collect_garbage(str(found.workspace.root), [found.settings])
        held = [text for path in (tmp_path / "w").rglob("*.parquet") for text in texts_of(path)]
        assert [text in held for text in texts] == [row not in rows for row in (3, 4)]
    again, _ = run("b.org/3\nb4", erase=True, keep_dropped=True)
    assert not built(again)


def texts_of(path):
    table = pq.read_table(path)
    return table["text"].to_pylist() if "text" in table.column_names else []
