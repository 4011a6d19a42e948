"""Write shards of random vectors and qualities, without documents to make them from."""

import numpy as np
import pyarrow as pa

from fineweb_mask.tasks.workspace.references import ShardFiles, StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import write_table

DIMENSIONS = 8


def numbers(
    workspace: Workspace,
    name: str,
    rows: int,
    *,
    seed: int = 0,
    duplicates: tuple[int, ...] = (),
    bad: tuple[int, ...] = (),
    dump: tuple[str, ...] = ("d",),
) -> ShardFiles:
    """Write a shard of random vectors and qualities; the bad rows have the best quality, and duplicates have none."""
    dice = np.random.default_rng(seed)
    vectors = dice.normal(size=(rows, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    quality = dice.normal(size=rows).astype(np.float32)
    quality[list(bad)] = 50.0
    mask = np.isin(np.arange(rows), bad)
    row = pa.array(np.arange(rows), pa.uint32())
    embedding = pa.FixedSizeListArray.from_arrays(
        pa.array(vectors.astype(np.float16).reshape(-1)), DIMENSIONS, mask=pa.array(mask)
    )
    tables = {
        "documents": {"row": row, "token_count": pa.array(range(10, 10 + rows), pa.int64()), "n_chars": row},
        "scores": {"row": row, "quality": pa.array(quality)},
        "embeddings": {"row": row, "embedding": embedding},
        "duplicates": {"shard": pa.array([name] * len(duplicates)), "row": pa.array(duplicates, pa.uint32())},
    }
    tables["documents"]["dump"] = pa.array([dump[place % len(dump)] for place in range(rows)], pa.string())
    kept = pa.array(np.isin(np.arange(rows), duplicates, invert=True))
    files = {}
    for stage, columns in tables.items():
        table = pa.table(columns)
        if stage in {"scores", "embeddings"}:
            table = table.filter(kept)
        key = StageKey(stage=stage, version=1, settings=str(seed), inputs=f"{name} {rows} {duplicates} {bad}")
        details = {"duplicate": len(duplicates)} if stage == "duplicates" else {}
        files[stage] = write_table(workspace, stage, name, table, key, **details)
    return ShardFiles(**files)
