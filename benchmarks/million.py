"""Run the pipeline over a million synthetic documents, stage by stage, and measure its speed and memory.

    python -m benchmarks.million FOLDER --documents 1000000 --shards 20

Makes the corpus in FOLDER first (and finds it there the next time): texts of about 1 kB, of random words with Zipf's
frequencies, one in a hundred a copy of another shard's. Every stage is a `fineweb-mask run --only STAGE` with the
sample's recipe, in a process of its own. Memory is that of the process and of those that it forks (their proportional
set size), without Prefect's temporary server, sampled twice a second: at most, and at most in each quarter of the time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.materialize import babble
from benchmarks.tables import show
from fineweb_mask.models.schemas import FINEWEB

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("ingest", "score", "embed", "select", "materialize")
CHARACTERS = 1_000
COPIES = 100  # one document in so many is a copy
EVERY = 0.5  # seconds between two samples of the memory
SHOWN_WITH = {"select": ("dedup", "select")}  # stages that a command runs besides its own


def make_corpus(folder: Path, documents: int, shards: int) -> Path:
    corpus = folder / f"corpus-{documents}-{shards}"
    if corpus.is_dir():
        return corpus
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    random = np.random.default_rng(0)
    words = babble(random)
    n = documents // shards
    for shard in range(shards):
        lengths = random.integers(CHARACTERS // 2, CHARACTERS * 3 // 2, n)
        starts = random.integers(0, len(words) - lengths.max(), n)
        starts[: n // COPIES] = np.arange(n // COPIES) * 5_000  # in every shard the same
        lengths[: n // COPIES] = CHARACTERS
        texts = [
            words[start : start + length].tobytes().decode() for start, length in zip(starts, lengths, strict=True)
        ]
        rows = {
            "text": texts,
            "id": [f"{shard}-{row}" for row in range(n)],
            "dump": ["CC-MAIN-2024-10"] * n,
            "url": [f"https://example.org/{shard}/{row}" for row in range(n)],
            "date": ["2024-03-01T00:00:00Z"] * n,
            "file_path": ["x"] * n,
            "language": ["en"] * n,
            "language_score": [0.95] * n,
            "token_count": [length // 5 for length in lengths.tolist()],
        }
        pq.write_table(
            pa.table([rows[field.name] for field in FINEWEB], schema=FINEWEB), partial / f"{shard:04d}.parquet"
        )
    partial.rename(corpus)
    return corpus


def memory_of(process: int) -> float:
    """Return the MiB of a process and its children, Prefect's server aside."""
    found, left = 0.0, [process]
    while left:
        one = left.pop()
        with suppress(OSError):
            if b"uvicorn" in Path(f"/proc/{one}/cmdline").read_bytes():
                continue
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    found += int(line.split()[1]) / 1024
            for task in Path(f"/proc/{one}/task").iterdir():
                left += [int(child) for child in (task / "children").read_text().split()]
    return found


def run_stage(stage: str, arguments: list[str]) -> tuple[float, list[float], dict[str, dict[str, float]]]:
    """Return the seconds of a stage's command, its memory over time, and what it says of its stages."""
    command = [sys.executable, "-m", "fineweb_mask.flows.cli", "run", str(ROOT / "deployments/recipes/sample.yaml")]
    environment = os.environ | {"PREFECT_LOGGING_LEVEL": "WARNING"}
    started, samples = time.perf_counter(), []
    with subprocess.Popen(
        [*command, "--only", stage, "--json", *arguments], env=environment, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        while process.poll() is None:
            samples.append(memory_of(process.pid))
            time.sleep(EVERY)
        assert process.stdout is not None
        output = process.stdout.read()
    assert process.returncode == 0, output
    stages = json.loads(output.splitlines()[-1])["stages"]
    return time.perf_counter() - started, samples, {one["stage"]: one for one in stages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], help="a setting, as for `fineweb-mask run`")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    corpus = make_corpus(folder, arguments.documents, arguments.shards)
    workspace = folder / "workspace"
    shutil.rmtree(workspace, ignore_errors=True)
    options = ["--workspace", str(workspace), "--set", f"source.path={corpus}"]
    options += [word for setting in arguments.set for word in ("--set", setting)]
    rows = []
    for stage in STAGES:
        seconds, samples, stages = run_stage(stage, options)
        busy = sum(one["seconds"] for name, one in stages.items() if name in (stage, *SHOWN_WITH.get(stage, ())))
        quarters = [max(part, default=0.0) for part in np.array_split(np.array(samples), 4)]
        rate = f"{arguments.documents / seconds:,.0f}"
        others = ", ".join(name for name, one in stages.items() if name != stage and one["files"] > one["cached"])
        rows.append(
            [stage, others, f"{seconds:,.0f}", f"{busy:,.0f}", rate, f"{max(samples):,.0f}"]
            + [f"{quarter:,.0f}" for quarter in quarters]
        )
        show(
            f"{arguments.documents:,} documents of 1 kB in {arguments.shards} shards",
            ["stage", "with it", "s", "s of its jobs", "documents/s", "peak MiB", "quarter 1", "2", "3", "4"],
            rows,
        )


if __name__ == "__main__":
    main()
