"""File systems are opened by URL, and object stores are read through the same interface."""

import pytest

from fineweb_mask.tasks.storage.remote.errors import ChangedError, RemoteError
from fineweb_mask.tasks.storage.remote.filesystem import open_filesystem
from tests.conftest import Bucket


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(RemoteError, match=r"^abc://x: Protocol not known: abc"):
        open_filesystem("abc://x")


def test_a_bucket_is_looked_through(any_bucket: Bucket) -> None:
    for key in ("top", "in/a b+%é", "in/deep/c", "in/deep/er/d", "in2/e"):
        any_bucket.write(key, b"12")
    files, path = open_filesystem(f"{any_bucket.url}/in")
    bucket = any_bucket.name
    assert path == f"{bucket}/in"
    assert files.info(path)["type"] == files.info(bucket)["type"] == "directory"
    assert files.find(path) == [f"{bucket}/in/a b+%é", f"{bucket}/in/deep/c", f"{bucket}/in/deep/er/d"]
    assert files.find(f"{bucket}/top") == [f"{bucket}/top"]
    assert files.find(f"{bucket}/none") == []
    assert sorted(files.ls(path, detail=False)) == [f"{bucket}/in/a b+%é", f"{bucket}/in/deep"]
    assert files.glob(f"{bucket}/in*/*e*") == [f"{bucket}/in/deep", f"{bucket}/in2/e"]
    assert files.glob(f"{bucket}/**/[cd]") == [f"{bucket}/in/deep/c", f"{bucket}/in/deep/er/d"]
    assert len(files.find(bucket)) == 5
    with pytest.raises(FileNotFoundError):
        files.info(f"{bucket}/none")


def test_a_listing_and_a_request_name_the_same_version(any_bucket: Bucket) -> None:
    any_bucket.write("in/a", b"12")
    files, path = open_filesystem(f"{any_bucket.url}/in/a")
    assert files.find(path, detail=True) == {path: files.info(path)}
    assert {entry["name"]: entry for entry in files.ls(f"{any_bucket.name}/in")} == {path: files.info(path)}
    assert files.info(path)["ETag"] == any_bucket.server.client.head_object(Bucket=any_bucket.name, Key="in/a")["ETag"]


def test_a_range_of_another_version_is_an_error(any_bucket: Bucket) -> None:
    any_bucket.write("a", b"0123456789")
    files, path = open_filesystem(f"{any_bucket.url}/a")
    tag = files.info(path)["ETag"]
    assert files.read_range(path, 3, 5, tag) == b"34"
    any_bucket.write("a", b"9876543210")
    with pytest.raises(Exception, match="Precondition") as caught:
        files.read_range(path, 3, 5, tag)
    assert not isinstance(caught.value, ChangedError)  # `attempt` makes it one
    assert files.cat_file(path) == b"9876543210"
