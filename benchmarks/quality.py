"""Measure the fastText score stage: Parquet in, Parquet out, against the bare classifier and against datatrove.

    python -m benchmarks.quality rate --documents pages.parquet --model model.bin
    python -m benchmarks.quality peer --documents pages.parquet --model model.bin --peer-python path/to/python
    python -m benchmarks.quality memory --documents pages.parquet --model large.bin

`pages.parquet` has a `text` column; its rows are repeated up to `--rows`. `model.bin` is one
that a recipe has trained on labels, or another with the label `__label__1`. Results are medians of `--repeats`; the
alternatives are measured alternately.

`rate`: the raw rate is `multilinePredict` on lines in memory, in one process; "raw, all cores" runs one such process
per core at the same time, which is the most that the machine allows. The stage reads the documents and writes
the scores.
`peer` runs datatrove's Parquet reader, fastText filter and Parquet writer with the interpreter `--peer-python`. It
writes the documents; the stage writes a row number and a score. datatrove's labels are not saved: they are sorted by
probability within each document, and its writer accepts only one order.
`memory` is the peak of the proportional set size, summed over the stage's process and its descendants.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import fasttext
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measuring import proportional_mib
from benchmarks.tables import show
from fineweb_mask.models.quality.fasttext import fasttext_line
from fineweb_mask.models.settings.quality import FastTextScorerSettings, QualitySettings
from fineweb_mask.tasks import score
from fineweb_mask.tasks.dedup.duplicates import no_duplicates
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.processes.workers import end_workers
from fineweb_mask.tasks.workspace.listing import find_file
from fineweb_mask.tasks.workspace.references import StageFile, StageKey
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

BATCH = 500
SCORER = FastTextScorerSettings(name="fasttext", model="model.bin")
SETTINGS = QualitySettings(scorers=[SCORER])
STATISTICS = StageFile(
    stage="fit_statistics",
    name="statistics",
    path="",
    rows=0,
    bytes=0,
    fingerprint="benchmark",
    details={"statistics": {"fasttext": (0.0, 1.0)}},
)

DATATROVE = """
import json, logging, sys, time
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import FastTextClassifierFilter
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from loguru import logger

if __name__ == "__main__":
    logger.remove()
    documents, output, model, files, cores = sys.argv[1:]
    start = time.perf_counter()
    LocalPipelineExecutor(
        pipeline=[
            ParquetReader(documents),
            FastTextClassifierFilter(model, keep_labels=[("1", 0.0)], newline_replacement=" ",
                                     save_labels_in_metadata=False),
            ParquetWriter(output),
        ],
        tasks=int(files), workers=int(cores), logging_dir=output + "-logs",
    ).run()
    print(json.dumps({"seconds": time.perf_counter() - start}))
"""


def write_documents(arguments: argparse.Namespace, workspace: Workspace, files: int) -> list[StageFile]:
    texts = pq.read_table(arguments.documents, columns=["text"])["text"]
    repeats = -(-arguments.rows // len(texts))
    texts = pa.chunked_array(texts.chunks * repeats).slice(0, arguments.rows)
    key = StageKey(stage="documents", version=1, settings="", inputs="")
    written = []
    for file in range(files):
        part = texts.slice(
            file * arguments.rows // files, (file + 1) * arguments.rows // files - file * arguments.rows // files
        )
        table = pa.table({"row": pa.array(range(len(part)), pa.uint32()), "text": part})
        path = workspace.shard_path("documents", f"{file:03d}", key)
        with stage_file_writer(path, table.schema, key) as writer:
            for batch in table.to_batches(2_000):
                writer.write(batch)
        reference = find_file(workspace, "documents", f"{file:03d}", key)
        assert reference is not None
        written.append(reference)
    return written


def stage_seconds(workspace: Workspace, documents: list[StageFile], model: str, processes: int) -> float:
    shutil.rmtree(workspace.root / "scores", ignore_errors=True)
    models = [QualityModel(settings=SCORER, path=model, fingerprint="benchmark")]
    start = time.perf_counter()
    for file in documents:
        job = score.ScoreJob(
            root=str(workspace.root),
            documents=file,
            duplicates=no_duplicates(file.name),
            models=models,
            statistics=STATISTICS,
            settings=SETTINGS,
            processes=processes,
        )
        score.score(job)
    return time.perf_counter() - start


def raw(arguments: argparse.Namespace) -> None:
    """Predict once per line of standard input and print documents per second; runs as a subprocess."""
    texts = pq.read_table(arguments.documents, columns=["text"])["text"].combine_chunks().slice(0, 10_000)
    lines = [fasttext_line(text, lowercase=False) for text in texts.to_pylist()]
    model = fasttext.load_model(arguments.model).f
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        for first in range(0, len(lines), BATCH):
            model.multilinePredict(lines[first : first + BATCH], -1, 0.0, "strict")
        print(len(lines) / (time.perf_counter() - start), flush=True)


@contextlib.contextmanager
def raw_processes(arguments: argparse.Namespace):  # noqa: ANN201
    command = [sys.executable, "-m", "benchmarks.quality", "raw", "--documents", arguments.documents]
    command += ["--model", arguments.model]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(arguments.cores)
    ]
    for process in started:
        process.stdout.readline()
    yield started
    for process in started:
        process.stdin.close()
        process.wait()


def raw_rate(processes: list[subprocess.Popen[str]]) -> float:
    """Return documents per second, summed over processes that predict at the same time."""
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.stdout.readline()) for process in processes)


def rate(arguments: argparse.Namespace) -> None:
    cores = arguments.cores
    found: dict[str, list[float]] = {name: [] for name in ("raw", "raw_all", "one", "all", "cold")}
    with tempfile.TemporaryDirectory() as folder, raw_processes(arguments) as processes:
        workspace = Workspace(folder)
        documents = write_documents(arguments, workspace, 1)
        for _ in range(arguments.repeats):
            found["raw"].append(raw_rate(processes[:1]))
            found["cold"].append(arguments.rows / stage_seconds(workspace, documents, arguments.model, cores))
            found["raw"].append(raw_rate(processes[:1]))
            found["raw_all"].append(raw_rate(processes))
            found["all"].append(arguments.rows / stage_seconds(workspace, documents, arguments.model, cores))
            found["raw_all"].append(raw_rate(processes))
            found["raw"].append(raw_rate(processes[:1]))
            end_workers()
            found["one"].append(arguments.rows / stage_seconds(workspace, documents, arguments.model, 1))
    rates = {name: median(values) for name, values in found.items()}
    lines = [
        ("raw, 1 process", "raw", 1),
        (f"raw, {cores} processes at once", "raw_all", cores),
        ("stage, 1 process", "one", 1),
        (f"stage, {cores} processes", "all", cores),
        (f"stage, {cores} processes, their start included", "cold", cores),
    ]
    table = [
        [
            title,
            f"{rates[name]:,.0f}",
            f"{rates[name] / (count * rates['raw']):.3f}",
            f"{rates[name] / (rates['raw_all'] * count / cores):.3f}",
        ]
        for title, name, count in lines
    ]
    header = ["", "documents/s", "of processes x raw", "of raw at once"]
    show(f"{arguments.rows:,} documents, {arguments.repeats} repeats", header, table)


def peer(arguments: argparse.Namespace) -> None:
    cores = arguments.cores
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder) / "workspace")
        documents = write_documents(arguments, workspace, 2 * cores)
        script = Path(folder) / "peer.py"
        script.write_text(DATATROVE)
        for repeat in range(arguments.repeats):
            ours.append(stage_seconds(workspace, documents, arguments.model, cores))
            end_workers()
            output = f"{folder}/datatrove-{repeat}"
            command = [arguments.peer_python, str(script), str(workspace.root / "documents"), output]
            command += [str(Path(arguments.model).absolute()), str(2 * cores), str(cores)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"datatrove: {done.stderr.strip()[-2000:]}")
            theirs.append(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])
            rows = sum(pq.read_metadata(path).num_rows for path in Path(output).glob("*.parquet"))
            assert rows == arguments.rows, rows
            shutil.rmtree(output)
    table = [
        [
            name,
            f"{median(seconds):.2f}",
            f"{arguments.rows / median(seconds):,.0f}",
            f"{median(theirs) / median(seconds):.2f}x",
        ]
        for name, seconds in (("fineweb-mask score", ours), ("datatrove", theirs))
    ]
    title = f"{arguments.rows:,} documents in {2 * cores} files, {cores} processes, their start included"
    show(title, ["", "s", "documents/s", "speed"], table)


def stage_alone(arguments: argparse.Namespace) -> None:
    """Score the documents; runs as a subprocess, so that its memory is measured separately."""
    workspace = Workspace(arguments.workspace)
    documents = [StageFile.model_validate_json(arguments.file)]
    stage_seconds(workspace, documents, arguments.model, arguments.cores)
    end_workers()


def memory(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(folder)
        [document] = write_documents(arguments, workspace, 1)
        peaks: dict[int, list[float]] = {1: [], arguments.cores: []}
        for _ in range(arguments.repeats):
            for processes, found in peaks.items():
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.quality",
                    "stage-alone",
                    "--documents",
                    arguments.documents,
                ]
                command += ["--model", str(Path(arguments.model).absolute()), "--cores", str(processes)]
                command += ["--workspace", folder, "--file", document.model_dump_json()]
                found.append(_peak(subprocess.Popen(command)))
    one = median(peaks[1])
    table = [[str(count), f"{median(found):,.0f}", f"{median(found) / one:.3f}"] for count, found in peaks.items()]
    size = os.path.getsize(arguments.model) / 2**20  # noqa: PTH202
    show(f"model of {size:,.0f} MiB, {arguments.rows:,} documents", ["processes", "peak MiB", "of one"], table)


def _peak(process: subprocess.Popen[bytes]) -> float:
    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, proportional_mib(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    process.wait()
    done.set()
    watcher.join()
    assert process.returncode == 0
    return peak


TABLES = {"rate": rate, "peer": peer, "memory": memory, "raw": raw, "stage-alone": stage_alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES, metavar="{rate,peer,memory}")
    documents = os.environ.get("FINEWEB_MASK_DOCUMENTS")
    parser.add_argument("--documents", default=documents, required=documents is None, help="Parquet file with `text`")
    parser.add_argument("--model", required=True, help="fastText .bin with the label __label__1")
    parser.add_argument("--rows", type=int, default=100_000, help="documents")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="processes at most")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has datatrove")
    parser.add_argument("--workspace", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    TABLES[arguments.table](arguments)


if __name__ == "__main__":
    main()
