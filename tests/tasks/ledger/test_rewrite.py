"""Files that are written again without some documents are those that ingest writes of the source with the list."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.ledger.removal import KINDS, digest_of, in_order
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.ingest import IngestJob, ingest
from fineweb_mask.tasks.ledger.rewrite import rewrite_documents
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.removals import Removals
from fineweb_mask.tasks.workspace.workspace import Workspace

NAMES = {"url": ("url", 7), "id": ("id", 100), "text": ("text", 1200)}


def rows_of(corpus: Path) -> pa.Table:
    """Return rows of the sample: some come again, one in four has no id, and a column has values of its own."""
    table = pq.read_table(sorted((corpus / "corpus").glob("*.parquet"))[0])
    table = pa.concat_tables([table, table.slice(0, 40)])
    ids = [None if row % 4 == 3 else name for row, name in enumerate(table["id"].to_pylist())]
    table = table.set_column(table.schema.get_field_index("id"), FINEWEB.field("id"), pa.array(ids))
    return table.append_column("source", pa.array([f"s{row % 5}" for row in range(len(table))]))


@pytest.mark.parametrize("keep_dropped", [True, False])
def test_they_are_those_of_ingest_byte_by_byte(sample_corpus, tmp_path, keep_dropped):
    pq.write_table(table := rows_of(sample_corpus), tmp_path / "a.parquet")
    source = SourceSettings(path=str(tmp_path / "a.parquet"))
    settings = IngestSettings(min_chars=300, keep_dropped=keep_dropped, groups=["source", "dump"])
    [shard] = discover(source)
    before, after = Workspace(tmp_path / "before"), Workspace(tmp_path / "after")
    old = IngestJob(root=before.address, shard=shard, source=source, settings=settings)
    ingest(old)

    asked = {kind: in_order([digest_of(kind, table[column][row].as_py())]) for kind, (column, row) in NAMES.items()}
    asked["domain"] = in_order([digest_of("domain", "coffee-world.test")])
    removals = Removals.read(before)
    for kind in KINDS:
        removals = removals.with_found(kind, asked[kind], {}, "now")
    for workspace in (before, after):
        removals._replace(shards={"a": "hits"}).write(workspace)
    new = old.model_copy(update={"removed": "hits"})
    rewrite_documents(old, new, removals.unwanted)
    there = new.model_copy(update={"root": after.address})
    ingest(there)

    assert old.key != new.key
    written, expected = new.paths(), there.paths()
    assert (
        [path.exists() for path in written] == [path.exists() for path in expected] == [True, False, keep_dropped, True]
    )
    for path, other in zip(written, expected, strict=True):
        assert not path.exists() or path.read_bytes() == other.read_bytes()
    details = new.current().details
    assert details["dropped"]["removed"] == old.current().rows - new.current().rows >= 3
    assert {"duplicate", "too_short"} < set(details["dropped"])
    left = pq.read_table(new.output)
    gone = {table[column][row].as_py() for column, row in NAMES.values()}
    assert not gone & {value for name in ("url", "id") for value in left[name].to_pylist()}
    for path in written:
        if path.exists() and "text" in pq.read_schema(path).names:
            assert not gone & set(pq.read_table(path)["text"].to_pylist())
