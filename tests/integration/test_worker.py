"""Cancel a run on a worker, or kill it: the run stops in seconds, and the next one resumes."""

import fcntl
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fineweb_mask.flows.recipe import change, parse_value

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60
BUSY = 240  # until a run writes, where all cores are busy


def until(condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        time.sleep(0.02)


@pytest.fixture
def start(service, small_encoder) -> Callable[[str], tuple[str, Path]]:
    """Start the sample on the worker in a workspace of that name; return the flow run's id and the workspace."""

    def run(name: str) -> tuple[str, Path]:
        parameters = service.read("deployments/name/curate/sample")["parameters"]
        parameters["settings"]["workspace"] = f"workspaces/{name}"
        change(parameters["settings"], map(parse_value, small_encoder))
        done = service.command("prefect", "deployment", "run", "curate/sample", "--params", json.dumps(parameters))
        assert done.returncode == 0, done.stderr
        [found] = service.read("flow_runs/filter", sort="EXPECTED_START_TIME_DESC", limit=1)
        return found["id"], service.home / "workspaces" / name

    return run


def state_of(service, flow_run: str) -> str:
    return service.read(f"flow_runs/{flow_run}")["state"]["type"]


def is_held(workspace: Path) -> bool:
    """Return whether a run holds the workspace."""
    with (workspace / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.long
def test_cancelled_or_killed_a_run_stops_and_nothing_is_lost(service, start, run_sample, outcome, finished):
    flow_run, workspace = start("disturbed")
    until(lambda: len(list((workspace / "documents").glob("*.parquet"))) == 4, "for the documents", BUSY)
    service.read(f"flow_runs/{flow_run}/set_state", state={"type": "CANCELLING"})  # as the UI does
    until(lambda: state_of(service, flow_run) == "CANCELLED", "for the state")
    until(lambda: not is_held(workspace), "for the process to end")
    assert not list(workspace.rglob("*.partial"))
    assert not (workspace / "dataset").exists()

    flow_run, _ = start("disturbed")
    until(lambda: any((workspace / "embeddings").glob(".*.partial")), "for the first embeddings", BUSY)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == flow_run:
                process.kill()
    until(lambda: not is_held(workspace), "for the run to be ended")
    summary = run_sample(workspace)
    assert {stage.stage: stage.cached for stage in summary.stages}["ingest"] == 4
    assert outcome(workspace) == outcome(finished)
