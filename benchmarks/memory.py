"""Measure the peak memory of every stage on one shard, small, medium and large: it should not grow with the shard.

    python -m benchmarks.memory stages FOLDER --rows 10000 40000 120000
    python -m benchmarks.memory metrics FOLDER --rows 40000 120000 --metrics pairwise+facility disf

`stages` makes a shard in FOLDER (and finds it there the next time): texts of about 0.9 kB in FineWeb's columns. Every
stage is a `fineweb-mask run --until STAGE` with the sample's recipe, in its own process, which finds what earlier
ones made. After `embed`, its 768 float16 values a row are replaced by the seeded vectors of `benchmarks/synthetic.py`,
which are as uneven as a corpus's; the built-in encoder's vectors of random words are not. `metrics` only selects again,
with other metrics.

The peak is that of the process (`VmHWM`), Prefect's client and all packages included; "over imports" is what it is
above the process's memory when everything has been imported. What an allocator keeps counts, as it does for a machine.
"""

import argparse
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measuring import STAGES, status_mib
from benchmarks.synthetic import clustered
from benchmarks.tables import show

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "deployments" / "recipes" / "sample.yaml"
DIMENSIONS = 768
COPIES = 0.05  # share of the documents that are near-copies of others
AT_ONCE = 10_000  # texts made at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, rows in (("stages", [10_000, 40_000, 120_000]), ("metrics", [40_000, 120_000])):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("--rows", type=int, nargs="+", default=rows)
        command.add_argument("--set", action="append", default=[], help="a setting, as for `fineweb-mask run`")
        command.add_argument("--again", nargs="+", default=[], metavar="STAGE", help="only these, of a finished run")
        command.add_argument("--metrics", nargs="+", default=["pairwise+facility", "disf"])
    measured = commands.add_parser("measured", help="run a command of `fineweb-mask` in this process")
    measured.add_argument("output", type=Path)
    measured.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    {"stages": stages, "metrics": metrics, "measured": run_measured}[arguments.command](arguments)


def stages(arguments: argparse.Namespace) -> None:
    lines = []
    for rows in arguments.rows:
        options = prepared(arguments.folder.absolute(), rows, arguments.set)
        for stage in arguments.again or STAGES:
            if arguments.again:
                shutil.rmtree(arguments.folder.absolute() / f"workspace-{rows}" / STAGES[stage])
            measured = measure(["--until", stage, *options])
            lines.append(line_of(rows, stage, measured))
            if stage == "embed":
                replace_vectors(arguments.folder.absolute() / f"workspace-{rows}")
            show_lines("one shard of 0.9 kB a row", "stage", lines)


def metrics(arguments: argparse.Namespace) -> None:
    lines = []
    for rows in arguments.rows:
        for names in arguments.metrics:
            weights = ", ".join(f'"{name}": 1' for name in names.split("+"))
            chosen = [*arguments.set, f"selection.metrics={{{weights}}}"]
            options = prepared(arguments.folder.absolute(), rows, chosen)
            shutil.rmtree(arguments.folder.absolute() / f"workspace-{rows}" / STAGES["select"], ignore_errors=True)
            measured = measure(["--until", "select", *options])
            lines.append(line_of(rows, names, measured))
            show_lines("select", "metrics", lines)


def show_lines(title: str, first: str, lines: list[list[str]]) -> None:
    show(title, ["rows", "vectors MB", first, "s", "after imports MB", "peak MB", "over imports MB"], lines)


def line_of(rows: int, name: str, measured: dict[str, float]) -> list[str]:
    over = measured["peak"] - measured["imports"]
    figures = [f"{value:,.0f}" for value in (measured["seconds"], measured["imports"], measured["peak"], over)]
    return [f"{rows:,}", f"{rows * DIMENSIONS * 2 / 1e6:,.0f}", name, *figures]


def prepared(folder: Path, rows: int, chosen: list[str]) -> list[str]:
    """Make the shard if it is not there, and return the options of a run on it."""
    source = folder / f"source-{rows}"
    if not source.is_dir():
        partial = folder / f"partial-{rows}"
        partial.mkdir(parents=True, exist_ok=True)
        write_shard(partial / "shard.parquet", rows)
        partial.rename(source)
    options = ["--workspace", str(folder / f"workspace-{rows}")]
    for setting in (f"source.path={source}", "ingest.exact_dedup=off", *chosen):
        options += ["--set", setting]
    return options


def write_shard(path: Path, rows: int) -> None:
    """Write documents of random words with Zipf's frequencies, row group by row group."""
    from fineweb_mask.models.schemas import FINEWEB

    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = ["".join(random.choice(letters, length)) for length in random.integers(2, 11, 50_000)]
    chances = np.cumsum(1 / np.arange(1, len(words) + 1))
    with pq.ParquetWriter(path, FINEWEB, compression="zstd") as writer:
        for start in range(0, rows, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, rows))
            picked = np.searchsorted(chances, random.random((len(numbers), 150)) * chances[-1])
            texts = [" ".join([words[word] for word in row]) for row in picked.tolist()]
            n = len(numbers)
            columns = {
                "text": texts,
                "id": [f"<{number}>" for number in numbers],
                "dump": ["CC-MAIN-2024-10"] * n,
                "url": [f"https://site{number % 1000}.example/{number}" for number in numbers],
                "date": ["2024-03-01T00:00:00Z"] * n,
                "file_path": ["s3://x"] * n,
                "language": ["en"] * n,
                "language_score": [0.95] * n,
                "token_count": [len(text) // 5 for text in texts],
            }
            writer.write_table(pa.table([columns[field.name] for field in FINEWEB], schema=FINEWEB))


def replace_vectors(workspace: Path) -> None:
    """Replace the vectors of a workspace's one shard, under the same key."""
    from fineweb_mask.tasks.workspace.listing import read_footer
    from fineweb_mask.tasks.workspace.references import StageKey
    from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer

    [path] = (workspace / "embeddings").glob("*.parquet")
    found, schema = read_footer(path), pq.read_schema(path).remove_metadata()
    assert found is not None
    written = json.loads(found.text)
    details, key = written.pop("details"), StageKey(**written)
    vectors, _ = clustered(found.rows, DIMENSIONS, duplicates=COPIES)
    with stage_file_writer(path, schema, key) as writer:
        for start in range(0, len(vectors), AT_ONCE):
            values = vectors[start : start + AT_ONCE].astype(np.float16)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=schema.field("embedding").type)
            rows = pa.array(np.arange(start, start + len(values), dtype=np.uint32))
            writer.write(pa.record_batch([rows, lists], schema=schema))
        writer.details = details


def measure(options: list[str]) -> dict[str, float]:
    """Run a command in its own process: its seconds, and its memory in MB after imports and at most."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "benchmarks.memory", "measured", str(output), "run", str(RECIPE), *options]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        found: dict[str, float] = json.loads(output.read_text())
        return found


def run_measured(arguments: argparse.Namespace) -> None:
    atexit.register(os._exit, 0)  # after all else, as the command does: DuckDB would report what it takes for leaks
    import duckdb  # noqa: F401

    import fineweb_mask.models.embedding.load
    import fineweb_mask.models.selection.selector
    import fineweb_mask.tasks.reporting.page  # noqa: F401
    from fineweb_mask.flows.cli import app
    from fineweb_mask.flows.deployed import curate  # noqa: F401 - the flow, which Prefect is imported for

    imports, started = status_mib("VmRSS"), time.perf_counter()
    if app(arguments.arguments, standalone_mode=False):
        os._exit(1)
    measured = {"imports": imports, "peak": status_mib("VmHWM"), "seconds": time.perf_counter() - started}
    arguments.output.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
