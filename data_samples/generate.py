"""Write the sample corpus, its truth and the labels; `--check` compares them with a fresh run instead.

python data_samples/generate.py
python data_samples/generate.py --check
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from generator.corpus import SHARDS, make_corpus, make_labels  # noqa: E402

SEED = 20241005
FINEWEB_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("dump", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("token_count", pa.int64()),
    ]
)
TRUTH_SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("row", pa.uint32()),
        ("id", pa.string()),
        ("topic", pa.string()),
        ("kind", pa.string()),
        ("grade", pa.int8()),
        ("language", pa.string()),
        ("near_duplicate_of", pa.string()),
        ("exact_duplicate_of", pa.string()),
        ("truncated", pa.bool_()),
        ("broken", pa.bool_()),
        ("is_spam", pa.bool_()),
    ]
)
LABEL_SCHEMA = pa.schema([("text", pa.string()), ("score", pa.int8()), ("kind", pa.string()), ("topic", pa.string())])


def tables(seed: int = SEED) -> dict[str, pa.Table]:
    """Return every table of the sample by its path below this folder."""
    out: dict[str, pa.Table] = {}
    truth = []
    for (name, _, _), (rows, facts) in zip(SHARDS, make_corpus(seed), strict=True):
        out[f"corpus/{name}.parquet"] = pa.Table.from_pylist(rows, schema=FINEWEB_SCHEMA)
        truth += facts
    out["truth.parquet"] = pa.Table.from_pylist(truth, schema=TRUTH_SCHEMA)
    out["labels.parquet"] = pa.Table.from_pylist(make_labels(seed), schema=LABEL_SCHEMA)
    return out


def write(folder: Path, seed: int = SEED) -> None:
    """Write all tables below `folder`, each under a temporary name first."""
    for path, table in tables(seed).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".tmp")
        pq.write_table(table, unfinished, compression="zstd", compression_level=19, row_group_size=1000)
        unfinished.replace(target)
        print(f"{path}: {table.num_rows} rows, {target.stat().st_size / 1e6:.2f} MB")


def differences(folder: Path, seed: int = SEED) -> list[str]:
    """Return the paths below `folder` whose content is not what the generator writes."""
    with tempfile.TemporaryDirectory() as fresh:
        write(Path(fresh), seed)
        paths = sorted(path.relative_to(fresh) for path in Path(fresh).rglob("*.parquet"))
        return [
            str(path)
            for path in paths
            if not (folder / path).is_file()
            or not pq.read_table(folder / path).equals(pq.read_table(Path(fresh) / path))
        ]


def main() -> int:
    """Run the command; exit code 1 means that the committed files differ from a fresh run."""
    parser = argparse.ArgumentParser(description="Write the sample corpus, or check it against a fresh run.")
    parser.add_argument("--check", action="store_true", help="compare with the files here, write nothing")
    if not parser.parse_args().check:
        write(HERE)
        return 0
    changed = differences(HERE)
    print("differs: " + ", ".join(changed) if changed else "all files are as the generator writes them")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
