"""A stage of the tests, called numbers: its key and its files; and files of other stages."""

from pathlib import Path

import pyarrow as pa

from fineweb_mask.tasks.workspace.listing import find_file
from fineweb_mask.tasks.workspace.references import StageFile, StageKey
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

KEY = StageKey(stage="numbers", version=1, settings="s", inputs="i")
SCHEMA = pa.schema([pa.field("row", pa.uint32(), nullable=False), pa.field("text", pa.string())])


def batch(rows: int = 3) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(rows), pa.uint32()), pa.array(["x"] * rows)], schema=SCHEMA)


def write(path: Path, rows: int = 3, key: StageKey = KEY) -> Path:
    with stage_file_writer(path, SCHEMA, key) as writer:
        writer.write(batch(rows))
        writer.details = {"b": 2, "a": [1, None]}
    return path


def write_table(
    workspace: Workspace, folder: str, name: str, table: pa.Table, key: StageKey, **details: object
) -> StageFile:
    """Write a shard's file of a stage, and return what is known of it."""
    with stage_file_writer(workspace.shard_path(folder, name, key), table.schema, key) as writer:
        for batch in table.to_batches():
            writer.write(batch)
        writer.details = details
    file = find_file(workspace, folder, name, key)
    assert file is not None
    return file


def fail_after(_: object) -> None:
    raise ValueError("stop")


def newest(workspace: Workspace, stage_folder: str, shard: str) -> Path:
    """Return a shard's file that was written last; those of other keys stay."""
    found = (workspace.root / stage_folder).glob(f"{shard}.{'?' * 16}.parquet")
    return max(found, key=lambda path: path.stat().st_mtime_ns)
