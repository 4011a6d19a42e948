"""A remote workspace is locked by one run."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, raise_if_stopped
from fineweb_mask.tasks.storage.remote import lease as lease_module
from fineweb_mask.tasks.storage.remote import retries
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.storage.remote.lease import NAME, HeldError, lease
from fineweb_mask.tasks.storage.remote.object_store import Store
from tests.conftest import Bucket
from tests.s3 import Proxy, RcloneServer


@pytest.fixture
def store(bucket: Bucket) -> Store:
    return Store(f"{bucket.url}/ws")


def test_a_second_run_of_another_machine_is_refused(store: Store, bucket: Bucket, tmp_path: Path) -> None:
    with lease(store, tmp_path / "one"):
        refused = pytest.raises(HeldError, match=r"another run .* is using the workspace s3://.*/ws: wait for it")
        with refused, lease(store, tmp_path / "other"):
            pass
        assert list(bucket.names()) == [f"ws/{NAME}"]
    assert bucket.names() == {}
    with lease(store, tmp_path / "other"):
        pass


def test_a_store_that_ignores_conditions_is_refused(
    rclone_server: RcloneServer, reach: Callable[[str], None], tmp_path: Path
) -> None:
    rclone_server.client.create_bucket(Bucket="bucket")
    reach(rclone_server.url)
    refused = pytest.raises(RemoteError, match=r"s3://bucket/x: this store ignores .*choose a store that has .*folder")
    with refused, lease(Store("s3://bucket/x"), tmp_path / "lease"):
        pass
    assert rclone_server.names("bucket") == {}


def test_the_lease_of_a_killed_run_is_taken_over_by_the_same_machine(store: Store, tmp_path: Path) -> None:
    store.write_if_unchanged(NAME, json.dumps({"token": "of the killed run", "host": "here"}).encode(), None)
    (tmp_path / "lease").write_text("of the killed run")
    with lease(store, tmp_path / "lease"):
        pass


@pytest.mark.long
def test_a_lease_that_is_not_renewed_is_taken_over(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [Store(f"{bucket.url}/{number}") for number in range(3)]
    for store, content in zip(stores, (b'{"token": "x"}', b"not json", b"[]"), strict=True):
        store.write_if_unchanged(NAME, content, None)
        with pytest.raises(HeldError), lease(store, tmp_path / "lease"):
            pass
    monkeypatch.setattr(lease_module, "STALE_SECONDS", 1.0)
    time.sleep(2.1)  # the store counts in whole seconds
    for store in stores:
        with lease(store, tmp_path / "lease"):
            pass
        assert store.list_files() == {}


def test_an_unreachable_server_does_not_hide_the_error_that_ended_the_run(
    bucket: Bucket, proxy: Proxy, reach: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(proxy.url)
    monkeypatch.setattr(retries, "BRIEF_SECONDS", 0.2)

    def fail() -> None:
        proxy.kill()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), lease(Store(f"{bucket.url}/ws"), tmp_path / "lease"):
        fail()
    proxy.start()
    with lease(Store(f"{bucket.url}/ws"), tmp_path / "lease"):  # the same machine's, and nobody's any more
        pass


@pytest.mark.long
def test_one_of_many_simultaneous_runs_gets_the_lease(seaweed_bucket: Bucket, tmp_path: Path) -> None:
    """On SeaweedFS alone: `moto_server` looks and writes in two steps, between which another request can write."""
    store = Store(f"{seaweed_bucket.url}/ws")
    running, most, refused = 0, 0, 0
    lock, ready, others_refused = threading.Lock(), threading.Barrier(6), threading.Event()

    def run(number: int) -> None:
        nonlocal running, most, refused
        ready.wait()
        try:
            with lease(store, tmp_path / str(number)):
                with lock:
                    running += 1
                    most = max(most, running)
                assert others_refused.wait(30)
                with lock:
                    running -= 1
        except HeldError:
            with lock:
                refused += 1
                if refused == 5:
                    others_refused.set()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, refused) == (1, 5)


def test_a_lease_is_renewed_and_a_run_that_lost_it_stops(
    store: Store, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 0.05)
    try:
        with lease(store, tmp_path / "lease"):
            first = bucket.read(f"ws/{NAME}")
            time.sleep(0.3)
            assert json.loads(bucket.read(f"ws/{NAME}"))["renewed"] > json.loads(first)["renewed"]
            raise_if_stopped()
            bucket.write(f"ws/{NAME}", b'{"token": "another"}')
            time.sleep(0.5)
            with pytest.raises(StoppedError):
                raise_if_stopped()
        assert bucket.read(f"ws/{NAME}") == b'{"token": "another"}'
    finally:
        clear_stop_request()
