"""What is said where there is no cluster, and of jobs' errors; a real one is in tests/integration/test_ray.py."""

import socket

import pytest

from fineweb_mask.flows.cluster.cluster import ClusterError, check_engine, explained
from fineweb_mask.models.errors import message_of
from fineweb_mask.models.runtime.stopping import StoppedError
from fineweb_mask.tasks.storage.remote.errors import is_transient
from fineweb_mask.tasks.workspace.job import BadShardError


def test_what_ray_raises_is_explained_and_tried_again_where_that_helps():
    from ray import exceptions

    error = exceptions.RayTaskError("f", "traceback", BadShardError("a.parquet: damaged"))
    assert isinstance(explained(error, "ingest a"), BadShardError)
    assert isinstance(explained(error.as_instanceof_cause(), "ingest a"), BadShardError)
    assert isinstance(explained(exceptions.TaskCancelledError(), "ingest a"), StoppedError)
    for lost in (exceptions.WorkerCrashedError(), exceptions.NodeDiedError("gone")):
        again = explained(lost, "ingest a")
        assert is_transient(again)
        assert str(message_of(again)).startswith("ingest a: its process on the Ray cluster ended: ")
        assert "\n" not in str(again)
    assert is_transient(exceptions.ActorDiedError())
    assert not is_transient(exceptions.RaySystemError("other"))


def test_the_node_of_a_failure_is_in_the_log(caplog):
    from ray.exceptions import RayTaskError

    damaged = BadShardError("a.parquet: damaged")
    damaged.add_note("on node b (10.0.0.7)")
    explained(RayTaskError("f", "traceback", damaged).as_instanceof_cause(), "ingest a")
    assert "ingest a failed on node b (10.0.0.7): BadShardError: a.parquet: damaged" in caplog.text


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setattr("fineweb_mask.flows.cluster.cluster.find_spec", lambda _: None)
    with pytest.raises(ClusterError, match=r"extra 'ray'"):
        check_engine()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("auto", r"RAY_ADDRESS.*host:port"),
        ("ray://head:10001", r"RAY_ADDRESS.*host:port"),
        ("head", "no Ray cluster answers at head: "),
        ("127.0.0.1:99999", "no Ray cluster answers at 127.0.0.1:99999: "),
    ],
)
def test_the_run_has_to_be_on_a_machine_of_the_cluster(address, said, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=said):
        check_engine()


def test_an_address_at_which_nothing_listens_is_named_at_once(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ClusterError, match=rf"^RAY_ADDRESS: no Ray cluster answers at {address}: .*refused"):
            check_engine()
        free.listen()
        assert check_engine() == address
