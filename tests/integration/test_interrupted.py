"""A run that is killed or interrupted in any stage: the next one goes on from there, and ends the same."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.pipeline.start import DiscardedError
from tests.integration.conftest import sample_command, with_server

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {  # where a stage writes what it has not finished
    "ingest": "documents",
    "embed": "embeddings",
    "dedup": "cache",
    "select": "masks",
    "materialize": "dataset-parts",
    "report": "reports",
}
MADE = {  # and what it has made, by folders
    "embed": ("embeddings",),
    "dedup": ("compared", "duplicates"),
    "select": ("masks",),
    "materialize": ("dataset",),
    "report": ("reports",),
}


@pytest.fixture
def start(server, small_sample, tmp_path):
    """Start a run of the sample in its own process; it is ended with the test."""
    started = []

    def run(*arguments: str, deaf_to_ctrl_c: bool = False) -> subprocess.Popen[bytes]:
        command = sample_command(tmp_path / "workspace", small_sample, *arguments)
        # What is ignored here is ignored there; what is handled here is as usual there.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN if deaf_to_ctrl_c else signal.default_int_handler)
        with (tmp_path / "output").open("wb") as output:
            started.append(
                subprocess.Popen(command, cwd=ROOT, env=with_server(), stdout=output, stderr=subprocess.STDOUT)
            )
        signal.signal(signal.SIGINT, before)
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for_stage(process: subprocess.Popen[bytes], workspace: Path, stage: str) -> None:
    """Return as soon as a stage has started to write."""
    deadline = time.monotonic() + 300  # where all cores are busy
    while not any((workspace / FOLDERS[stage]).rglob(".*.partial")):
        assert process.poll() is None, f"the run ended before {stage} was seen to write"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def leftovers(workspace: Path) -> list[Path]:
    return [path for path in workspace.rglob("*") if path.name.endswith(".partial")]


def test_killed_or_interrupted_in_any_stage_it_ends_as_if_nothing_had_happened(
    start, run_sample, outcome, finished, tmp_path
):
    workspace, asked = tmp_path / "workspace", {"embed": (signal.SIGINT, 130), "dedup": (signal.SIGTERM, 143)}
    for stage in FOLDERS:
        for folder in MADE.get(stage, ()):  # the run killed before may have got further
            shutil.rmtree(workspace / folder, ignore_errors=True)
        process = start(deaf_to_ctrl_c=stage == "dedup")  # as in the background of a script
        wait_for_stage(process, workspace, stage)
        if stage not in asked:
            process.kill()
            process.wait()
            continue
        name, code = asked[stage]
        process.send_signal(name)
        assert process.wait(timeout=20) == code
        assert "run the same command again to resume" in (tmp_path / "output").read_text()
        assert not leftovers(workspace)
        assert not (workspace / "dataset").exists()
        for path in workspace.rglob("*.parquet"):
            pq.read_table(path)
    summary = run_sample(workspace)
    spent = {stage.stage: (stage.files, stage.cached) for stage in summary.stages}
    assert spent["ingest"] == spent["score"] == spent["embed"] == (4, 4)
    assert spent["select"] == spent["materialize"] == (1, 1)
    assert outcome(workspace) == outcome(finished)
    assert not leftovers(workspace)


def test_a_damaged_file_ends_the_run_that_reads_it_and_the_next_builds_it_again(
    workspace, run_sample, outcome, finished
):
    damaged = [min((workspace / folder).glob("*.parquet")) for folder in ("documents", "scores", "duplicates")]
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[40] ^= 1  # in the first page: the file is taken for current until it is read
        path.write_bytes(content)
    for folder in ("embeddings", "masks", "dataset"):
        shutil.rmtree(workspace / folder)
    for _ in damaged:
        with pytest.raises(DiscardedError, match="it is deleted: run again to build it again"):
            run_sample(workspace)
    assert run_sample(workspace, until="materialize").status == "done"
    assert outcome(workspace) == outcome(finished)
    for path in damaged:
        assert path.read_bytes() == (finished / path.relative_to(workspace)).read_bytes()
    ends = [json.loads(path.read_text())["error"] or "" for path in (workspace / "runs").glob("*.json")]
    assert sorted(path.name for path in damaged for end in ends if path.name in end) == sorted(
        path.name for path in damaged
    )
