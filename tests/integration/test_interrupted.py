"""A run that is killed or interrupted in any stage: the next one goes on from there, and ends the same."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prefect.settings import PREFECT_API_URL

from fineweb_mask.flows.summary import RunSummary

ROOT = Path(__file__).resolve().parents[2]
RunSample = Callable[..., RunSummary]
Outcome = Callable[[Path], dict[str, bytes]]
Start = Callable[..., subprocess.Popen[bytes]]
FOLDERS = {  # where each stage writes what it has not finished
    "ingest": "documents",
    "dedup": "repeats",
    "fit": "fitted",
    "embed": "embeddings",
    "score": "scores",
    "select": "masks",
    "materialize": ".",
    "report": "reports",
}
PATTERNS = {"materialize": ".dataset.*.partial"}


@pytest.fixture
def start(
    server: None, small_sample: tuple[str, ...], tmp_path: Path
) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a run of the sample in a process of its own; it is ended with the test."""
    started = []
    environment = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}

    def run(*arguments: str, deaf_to_ctrl_c: bool = False) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fineweb_mask.flows.cli", "run", "deployments/recipes/sample.yaml"]
        command += ["--workspace", str(tmp_path / "workspace"), *(f"--set={one}" for one in small_sample), *arguments]
        # What is ignored here is ignored there; what is handled here is as usual there.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN if deaf_to_ctrl_c else signal.default_int_handler)
        with (tmp_path / "output").open("wb") as output:
            started.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
            )
        signal.signal(signal.SIGINT, before)
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for_stage(process: subprocess.Popen[bytes], workspace: Path, stage: str) -> None:
    """Return as soon as a stage has begun to write."""
    pattern = PATTERNS.get(stage, ".*.partial")
    deadline = time.monotonic() + 60
    while not any((workspace / FOLDERS[stage]).glob(pattern)):
        assert process.poll() is None, f"the run ended before {stage} was seen to write"
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def leftovers(workspace: Path) -> list[Path]:
    return [path for path in workspace.rglob("*") if path.name.endswith(".partial") or path.parent.name == ".parts"]


def test_killed_in_every_stage_it_ends_as_if_nothing_had_happened(
    start: Start, run_sample: RunSample, outcome: Outcome, finished: Path, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    for stage in FOLDERS:
        again = () if stage in {"ingest", "fit"} else ("--refresh", stage)  # the run killed before may have got further
        process = start(*again)
        wait_for_stage(process, workspace, stage)
        process.kill()
        process.wait()
    summary = run_sample(workspace)
    spent = {stage.stage: (stage.files, stage.cached) for stage in summary.stages}
    assert spent["ingest"] == spent["score"] == spent["embed"] == (4, 4)
    assert spent["select"] == spent["materialize"] == (1, 1)
    assert outcome(workspace) == outcome(finished)
    assert not leftovers(workspace)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_interrupted_it_stops_in_seconds_leaves_no_half_file_and_goes_on(
    start: Start, run_sample: RunSample, outcome: Outcome, finished: Path, tmp_path: Path, name: str
) -> None:
    workspace = tmp_path / "workspace"
    process = start(deaf_to_ctrl_c=name == "SIGTERM")  # as in the background of a script
    wait_for_stage(process, workspace, "embed")
    process.send_signal(getattr(signal, name))
    assert process.wait(timeout=20) == 130
    assert "run the same command again to resume" in (tmp_path / "output").read_text()
    assert not [path for path in workspace.rglob("*") if path.name.endswith(".partial")]
    assert not (workspace / "dataset").exists()
    for path in workspace.rglob("*.parquet"):
        pq.read_table(path)
    summary = run_sample(workspace)
    assert {stage.stage: stage.cached for stage in summary.stages}["ingest"] == 4
    assert outcome(workspace) == outcome(finished)
