"""A stage of the tests, called numbers: its key and its files."""

from pathlib import Path

import pyarrow as pa

from fineweb_mask.tasks.workspace.references import StageKey
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


def fail_after(_: object) -> None:
    raise ValueError("stop")


def newest(workspace: Workspace, stage_folder: str, shard: str) -> Path:
    """Return a shard's file that was written last; those of other keys stay."""
    found = (workspace.root / stage_folder).glob(f"{shard}.{'?' * 16}.parquet")
    return max(found, key=lambda path: path.stat().st_mtime_ns)
