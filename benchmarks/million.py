"""Run the pipeline over a million synthetic documents, stage by stage, and measure its speed and memory.

    python -m benchmarks.million FOLDER --documents 1000000 --shards 20

Makes the corpus in FOLDER first (and finds it there the next time): texts of about 1 kB on one of 200 topics each, half
of the words of the topic, with Zipf's frequencies; one in a hundred is a copy of another shard's. Every stage is a
`fineweb-mask run --until STAGE` in its own process, with the sample's recipe, but selecting a tenth of every
50,000 documents; it finds what earlier ones made. Memory is that of the process and of those that it forks (their
proportional set size), without Prefect's temporary server, sampled twice a second: at most, and at most in each quarter
of the time.
"""

import argparse
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.command import COMMAND, ROOT, sets
from benchmarks.measuring import proportional_mib
from benchmarks.tables import show
from fineweb_mask.models.schemas import FINEWEB

STAGES = ("ingest", "score", "embed", "select", "materialize", "report")
WORDS = 150  # of a document, about 1 kB
TOPICS = 200
OF_TOPIC = 500  # words that only one topic has
COPIES = 100  # one document in so many is a copy
SETTINGS = {"selection.block_size": 50_000, "selection.select_ratio": 0.1}
EVERY = 0.5  # seconds between two samples of the memory
SHOWN_WITH = {"select": ("dedup", "select")}  # other stages that a command also runs


def make_corpus(folder: Path, documents: int, shards: int) -> Path:
    corpus = folder / f"corpus-{documents}-{shards}"
    if corpus.is_dir():
        return corpus
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    random = np.random.default_rng(0)
    words = vocabulary(random, 50_000 + TOPICS * OF_TOPIC)
    n = documents // shards
    copies = make_texts(random, words, n // COPIES)
    for shard in range(shards):
        texts = [*copies, *make_texts(random, words, n - len(copies))]
        rows = {
            "text": texts,
            "id": [f"{shard}-{row}" for row in range(n)],
            "dump": ["CC-MAIN-2024-10"] * n,
            "url": [f"https://example.org/{shard}/{row}" for row in range(n)],
            "date": ["2024-03-01T00:00:00Z"] * n,
            "file_path": ["x"] * n,
            "language": ["en"] * n,
            "language_score": [0.95] * n,
            "token_count": [len(text) // 5 for text in texts],
        }
        pq.write_table(
            pa.table([rows[field.name] for field in FINEWEB], schema=FINEWEB), partial / f"{shard:04d}.parquet"
        )
    partial.rename(corpus)
    return corpus


def vocabulary(random: np.random.Generator, size: int) -> list[str]:
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    return ["".join(random.choice(letters, length)) for length in random.integers(2, 11, size)]


def make_texts(random: np.random.Generator, words: list[str], n: int) -> list[str]:
    """Return texts of one topic each: half of the words are its own."""
    common = len(words) - TOPICS * OF_TOPIC
    lengths = random.integers(WORDS // 2, WORDS * 3 // 2, n)
    ends = np.cumsum(lengths)
    topics = np.repeat(random.integers(0, TOPICS, n), lengths)
    own = common + topics * OF_TOPIC + zipf(random, OF_TOPIC, len(topics))
    used = np.where(random.random(len(topics)) < 0.5, own, zipf(random, common, len(topics))).tolist()
    return [
        " ".join([words[word] for word in used[end - length : end]]) for end, length in zip(ends, lengths, strict=True)
    ]


def zipf(random: np.random.Generator, size: int, n: int) -> np.ndarray:
    weights = np.cumsum(1 / np.arange(1, size + 1))
    return np.searchsorted(weights, random.random(n) * weights[-1])


def run_stage(stage: str, arguments: list[str]) -> tuple[float, list[float], dict[str, dict[str, float]]]:
    """Return the seconds of a stage's command, its memory over time, and what it says of its stages."""
    command = [*COMMAND, "run", str(ROOT / "deployments/recipes/sample.yaml")]
    environment = os.environ | {"PREFECT_LOGGING_LEVEL": "WARNING"}
    started, samples = time.perf_counter(), []
    with subprocess.Popen(
        [*command, "--until", stage, "--json", *arguments], env=environment, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        while process.poll() is None:
            samples.append(proportional_mib(process.pid, other=b"uvicorn"))
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
    options = ["--workspace", str(workspace), *sets({"source.path": corpus} | SETTINGS)]
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
