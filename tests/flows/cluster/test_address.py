"""What is said where there is no cluster."""

import socket

import pytest

from fineweb_mask.flows.cluster.address import ClusterError, check_engine
from fineweb_mask.models.settings import EngineSettings


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fineweb_mask.flows.cluster.address.find_spec", lambda _: None)
    with pytest.raises(ClusterError, match=r"extra 'ray'"):
        check_engine(EngineSettings(kind="ray"))


def test_resources_are_of_stages_that_exist() -> None:
    with pytest.raises(ClusterError, match=r"engine.resources: no stage 'embedd', there are ingest, "):
        check_engine(EngineSettings(kind="ray", resources={"embedd": {"num_cpus": 2}}))


@pytest.mark.parametrize("address", ["auto", "ray://head:10001", "http://head:8265"])
def test_the_run_has_to_be_on_a_machine_of_the_cluster(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=r"RAY_ADDRESS.*host:port"):
        check_engine(EngineSettings(kind="ray"))


def test_an_address_at_which_nothing_listens_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ClusterError, match=rf"^RAY_ADDRESS: no Ray cluster answers at {address}: .*refused"):
            check_engine(EngineSettings(kind="ray"))
        free.listen()
        assert check_engine(EngineSettings(kind="ray")) == address


@pytest.mark.parametrize("address", ["head", "head:", "127.0.0.1:port", "127.0.0.1:99999"])
def test_what_is_no_address_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=rf"no Ray cluster answers at {address}: "):
        check_engine(EngineSettings(kind="ray"))
