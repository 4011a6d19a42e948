"""What is made of the errors of jobs on a cluster; jobs on a real one are in tests/integration/test_ray.py."""

import pytest

from fineweb_mask.flows.cluster.cluster import explained
from fineweb_mask.models.runtime.stopping import StoppedError
from fineweb_mask.tasks.storage.remote.errors import is_transient
from fineweb_mask.tasks.workspace.job import BadShardError


def test_what_ray_raises_is_explained_and_tried_again_where_that_helps() -> None:
    from ray import exceptions

    error = exceptions.RayTaskError("f", "traceback", BadShardError("a.parquet: damaged"))
    assert isinstance(explained(error, "ingest a"), BadShardError)
    assert isinstance(explained(error.as_instanceof_cause(), "ingest a"), BadShardError)
    assert isinstance(explained(exceptions.TaskCancelledError(), "ingest a"), StoppedError)
    for lost in (
        exceptions.WorkerCrashedError(),
        exceptions.NodeDiedError("gone"),
        exceptions.OutOfMemoryError("much"),
    ):
        assert explained(lost, "ingest a") is lost
        assert is_transient(lost)
    assert is_transient(exceptions.ActorDiedError())
    assert not is_transient(exceptions.RaySystemError("other"))


def test_the_node_of_a_failure_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    from ray.exceptions import RayTaskError

    damaged = BadShardError("a.parquet: damaged")
    damaged.add_note("on node b (10.0.0.7)")
    explained(RayTaskError("f", "traceback", damaged).as_instanceof_cause(), "ingest a")
    assert "ingest a failed on node b (10.0.0.7): BadShardError: a.parquet: damaged" in caplog.text
