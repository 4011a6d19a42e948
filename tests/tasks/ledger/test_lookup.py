"""Documents are found by URL, id and text, among those that are kept and those written aside."""

import pyarrow.parquet as pq

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.ledger.lookup import find_documents, find_dropped, find_texts
from fineweb_mask.tasks.reporting.samples import DocumentRef
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks import jobs
from tests.tasks.conftest import document, write_rows


def rows_of(ledger, index):
    return pq.read_table(ledger.workspace.resolve(ledger.shards[index].documents)).to_pylist()


def test_every_id_url_and_text_is_found_where_it_is(ledger):
    expected = {}
    for index in range(len(ledger.shards)):
        for row in rows_of(ledger, index):
            for name in (row["id"], row["url"], row["content_hash"]):
                refs = expected.setdefault(name, [])
                refs += [] if DocumentRef(index, row["row"]) in refs else [DocumentRef(index, row["row"])]
    names = [name for name in expected if isinstance(name, str)]
    assert find_documents(ledger.workspace, ledger.shards, [*names, "nowhere"]) == {
        name: expected[name] for name in names
    }
    hashes = [name for name in expected if isinstance(name, bytes)]
    assert find_texts(ledger.workspace, ledger.shards, [*hashes, bytes(16)]) == {one: expected[one] for one in hashes}

    row = rows_of(ledger, 0)[0]
    alike = find_texts(ledger.workspace, ledger.shards, [content_hash(row["text"].upper() + "  ")])
    assert alike[row["content_hash"]][0] == DocumentRef(0, 0)  # as deduplication compares texts


def test_what_ingest_wrote_aside_is_found_with_its_reason(tmp_path, recipe):
    """Of a source with a row that has no id, one that is too short and one that is repeated."""
    rows = [document(n) for n in range(5)]
    rows[1]["id"] = None
    rows[2]["text"] = "short"
    rows[4]["text"] = rows[3]["text"]
    write_rows(tmp_path / "source" / "a.parquet", rows)
    source = SourceSettings(path=str(tmp_path / "source"))
    [shard] = discover(source)
    workspace, settings = Workspace(tmp_path / "ws"), recipe.ingest.model_copy(update={"keep_dropped": True})
    shards = [ShardFiles(documents=ingest(jobs.ingest_job(workspace, shard, source, settings)))]
    wanted = [rows[0]["id"], rows[2]["url"], rows[4]["id"], rows[4]["url"]]
    found = list(find_dropped(workspace, shards, wanted))
    assert [(name, gone.source_row, gone.reason, gone.text) for name, gone in found] == [
        (rows[2]["url"], 2, "too_short", "short"),
        (rows[4]["id"], 4, "duplicate", rows[3]["text"]),
        (rows[4]["url"], 4, "duplicate", rows[3]["text"]),
    ]
