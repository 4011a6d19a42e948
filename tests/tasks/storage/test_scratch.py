"""A folder of bounded size: what leaves it, what stays, and who waits."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_mask.tasks.storage.mirror import Mirror, ensure_local, mirror_at
from fineweb_mask.tasks.storage.scratch import CrowdedError, ScratchError, pinned
from tests.conftest import Bucket
from tests.s3 import Proxy

SIZE = 1000


@pytest.fixture
def mirror(bucket: Bucket, tmp_path: Path) -> Mirror:
    """The local folder of a workspace with six files, and room for three of them."""
    for name in "abcdef":
        bucket.write(f"ws/documents/{name}", name.encode() * SIZE)
    return mirror_at(f"{bucket.url}/ws", tmp_path / "scratch", 3 * SIZE + 500)


def here(mirror: Mirror) -> set[str]:
    return {path.name for _, path in mirror.scratch.files()}


def use(mirror: Mirror, name: str) -> Path:
    time.sleep(0.01)  # a time of its own
    path = ensure_local(mirror.root / "documents" / name)
    assert path.read_bytes() == name.encode() * SIZE
    return path


def test_the_least_recently_used_leaves_first(mirror: Mirror, proxy: Proxy) -> None:
    for name in "abc":
        use(mirror, name)
    use(mirror, "a")
    use(mirror, "d")
    assert here(mirror) == set("acd")
    use(mirror, "e")
    assert here(mirror) == set("ade")
    use(mirror, "b")  # and comes back
    assert here(mirror) == set("deb")


def test_what_a_job_uses_stays_until_it_ends(mirror: Mirror) -> None:
    with pinned():
        use(mirror, "a")
        with pinned():
            use(mirror, "b")
        for name in "cdef":
            with pinned():
                use(mirror, name)
        assert here(mirror) == set("aef")
    for name in "bcd":
        use(mirror, name)
    assert here(mirror) == set("bcd")


def test_a_job_that_needs_more_than_the_limit_names_the_setting(mirror: Mirror) -> None:
    with pinned():
        for name in "abc":
            use(mirror, name)
        with pytest.raises(ScratchError, match=r"one job needs 4,000 bytes .* hold 3,500: raise engine\.scratch_bytes"):
            use(mirror, "d")
    assert here(mirror) == set("abc")
    use(mirror, "d")  # they are released


def test_a_file_larger_than_the_limit(mirror: Mirror, bucket: Bucket) -> None:
    bucket.write("ws/documents/large", b"x" * 4 * SIZE)
    use(mirror, "a")
    with pytest.raises(ScratchError, match=r"one job needs 4,000 bytes .*documents/large"):
        ensure_local(mirror.root / "documents" / "large")
    assert not (mirror.root / "documents" / "large").exists()


def test_a_job_waits_for_room_that_another_holds(mirror: Mirror) -> None:
    holding, waited = threading.Event(), []

    def hold() -> None:
        with pinned():
            for name in "abc":
                use(mirror, name)
            holding.set()
            time.sleep(0.5)
            waited.append(here(mirror))

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(10)
    with pinned():
        use(mirror, "d")
        assert waited == [set("abc")]
    thread.join()


def test_of_jobs_that_wait_for_each_other_one_gives_way(mirror: Mirror) -> None:
    ready, ended = threading.Barrier(2), []

    def work(first: str, then: str) -> None:
        try:
            with pinned():
                for name in first:
                    use(mirror, name)
                ready.wait()
                for name in then:
                    use(mirror, name)
            ended.append("done")
        except CrowdedError as error:
            ended.append(str(error))

    mirror.scratch.limit = 2 * SIZE
    threads = [threading.Thread(target=work, args=names) for names in (("a", "b"), ("c", "d"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert "done" in ended
    assert any("raise engine.scratch_bytes, or lower engine.workers" in message for message in ended)


def test_two_threads_download_a_file_once(
    mirror: Mirror, proxy: Proxy, reach: Callable[..., None], tmp_path: Path
) -> None:
    reach(proxy.url)
    through = mirror_at(mirror.url, tmp_path / "other", 3 * SIZE)
    ready = threading.Barrier(4)

    def read() -> None:
        ready.wait()
        use(through, "a")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(proxy.sent[path] for path in proxy.sent if path.endswith("/a")) == SIZE


def test_what_was_written_stays_and_is_counted(mirror: Mirror, tmp_path: Path) -> None:
    for name in "abc":
        use(mirror, name)
    (tmp_path / "new").write_bytes(b"n" * SIZE)
    mirror.upload(tmp_path / "new", mirror.root / "documents" / "new")
    assert here(mirror) == {"b", "c", "new"}
    with pinned():
        for name in "abc":
            use(mirror, name)
        (tmp_path / "more").write_bytes(b"m" * SIZE)
        mirror.upload(tmp_path / "more", mirror.root / "documents" / "more.parquet")  # at the URL only
    assert here(mirror) == set("abc")
    assert mirror.listing["documents/more.parquet"].bytes == SIZE


def test_without_a_limit_the_disk_is_not_filled(mirror: Mirror) -> None:
    mirror.scratch.limit = None
    for name in "abcdef":
        use(mirror, name)
    assert here(mirror) == set("abcdef")
    free = os.statvfs(mirror.root)
    with pytest.raises(ScratchError), mirror.scratch.room_for("huge", free.f_bavail * free.f_frsize):
        pass
