"""File systems are opened by URL, object stores through the same interface, and files read while a server fails."""

import io
import os
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile, open_filesystem, version_of
from tests.conftest import Bucket
from tests.s3 import Proxy

MIB = 2**20


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
    folder = f"{any_bucket.name}/in"
    [listed], [found] = files.ls(folder, detail=True), files.find(folder, detail=True).values()
    head = any_bucket.server.client.head_object(Bucket=any_bucket.name, Key="in/a")
    assert {version_of(one) for one in (files.info(path), found, listed)} == {head["ETag"].strip('"')}


def test_a_file_is_read_by_ranges(bucket: Bucket, proxy: Proxy, reach: Callable[[str], None]) -> None:
    table = pa.table({"row": pa.array(range(1000)), "text": pa.array([os.urandom(500).hex() for _ in range(1000)])})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    bucket.write("a.parquet", buffer.getvalue())
    reach(proxy.url)
    with RemoteFile(f"{bucket.url}/a.parquet") as file:
        assert pq.read_metadata(file).num_rows == 1000
        assert pq.read_table(file, columns=["row"])["row"].to_pylist() == list(range(1000))
    assert sum(proxy.sent.values()) < len(buffer.getvalue()) / 2
    with RemoteFile(f"{bucket.url}/a.parquet") as file:
        assert pq.read_table(file).equals(table)
        assert file.seek(-4, os.SEEK_END) == len(buffer.getvalue()) - 4
        assert file.read() == b"PAR1"
        assert file.read() == b""
        file.seek(0)
        assert file.read(2) + file.read(2) == b"PAR1"
