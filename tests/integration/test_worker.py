"""Cancel a run on a worker, or kill it: the run stops in seconds, and the next one resumes."""

import fcntl
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fineweb_mask.flows.recipe import parse_value
from tests.integration.conftest import until


def is_held(workspace: Path) -> bool:
    """Return whether a run holds the workspace."""
    with (workspace / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.long
def test_cancelled_or_killed_a_run_stops_and_nothing_is_lost(service, small_encoder, run_sample, outcome, finished):
    workspace, overrides = service.home / "workspaces" / "disturbed", dict(map(parse_value, small_encoder))

    def start():
        return service.start("curate/sample", overrides=overrides | {"workspace": "workspaces/disturbed"})

    flow_run = start()
    until(lambda: len(list((workspace / "documents").glob("*.parquet"))) == 4, "for the documents", 0.02)
    service.read(f"flow_runs/{flow_run}/set_state", state={"type": "CANCELLING"})  # as the UI does
    until(lambda: service.state_of(flow_run) == "Cancelled", "for the state")
    until(lambda: not is_held(workspace), "for the process to end")
    assert not list(workspace.rglob("*.partial"))
    assert not (workspace / "dataset").exists()

    flow_run = start()
    until(lambda: any((workspace / "embeddings").glob(".*.partial")), "for the first embeddings", 0.02)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == flow_run:
                process.kill()
    until(lambda: not is_held(workspace), "for the run to be ended")
    summary = run_sample(workspace, until="materialize")
    assert {stage.stage: stage.cached for stage in summary.stages}["ingest"] == 4
    assert outcome(workspace) == outcome(finished)
