"""Read a file at a URL while the server fails, is killed and is restarted."""

import io
import os
import threading
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.storage.remote.errors import ChangedError
from fineweb_mask.tasks.storage.remote.filesystem import FileInfo
from fineweb_mask.tasks.storage.remote.remote_file import RemoteFile
from tests.conftest import Bucket
from tests.s3 import Proxy, S3Server

MIB = 2**20


def test_reading_survives_a_restart_of_the_server(reach: Callable[[str], None]) -> None:
    content = os.urandom(6 * MIB)
    server = S3Server()
    try:
        server.client.create_bucket(Bucket="restarted")
        server.client.put_object(Bucket="restarted", Key="a", Body=content)
        reach(server.url)
        with RemoteFile("s3://restarted/a") as file:
            first = file.read(2 * MIB)
            server.kill()
            starting = threading.Timer(1.0, server.start)
            starting.start()
            starting.join()
            server.client.create_bucket(Bucket="restarted")
            server.client.put_object(Bucket="restarted", Key="a", Body=content)
            rest = file.read()
        assert first + rest == content
    finally:
        server.kill()


def test_a_connection_that_breaks_within_a_range_is_reopened(
    bucket: Bucket, proxy: Proxy, reach: Callable[[str], None]
) -> None:
    content = os.urandom(3 * MIB)
    bucket.write("a", content)
    reach(proxy.url)
    with RemoteFile(f"{bucket.url}/a") as file:
        start = file.read(MIB)
        proxy.cut_after = MIB // 2
        rest = file.read(2 * MIB)
    assert proxy.cuts == 1
    assert start + rest == content


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


def test_a_file_overwritten_while_it_is_read_is_an_error(bucket: Bucket) -> None:
    bucket.write("a", b"old" * MIB)
    with RemoteFile(f"{bucket.url}/a") as file:
        file.read(10)
        bucket.write("a", b"new" * MIB)
        with pytest.raises(ChangedError, match="/a changed while it was read"):
            file.read(10)
    with (
        RemoteFile(f"{bucket.url}/a", FileInfo(3 * MIB, "another")) as file,
        pytest.raises(ChangedError, match="/a changed"),
    ):
        file.read(10)
