"""Credentials, servers and certificates are taken from the environment."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_mask.tasks.storage.remote.buckets import open_bucket
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.storage.remote.object_store import Store
from tests.conftest import Bucket
from tests.s3 import KEY_ID, SECRET, free_port

NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch, seaweed_bucket: Bucket) -> Bucket:
    """A bucket of a server that checks signatures, and an environment without credentials."""
    for name in NAMES:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")  # this is no machine of Amazon's
    return seaweed_bucket


def write_profile(folder: Path, url: str, name: str) -> Path:
    """Write the file that `aws configure` writes."""
    lines = (f"[{name}]", f"aws_access_key_id = {KEY_ID}", f"aws_secret_access_key = {SECRET}", f"endpoint_url = {url}")
    (folder / "credentials").write_text("\n".join(lines))
    return folder / "credentials"


def test_a_wrong_secret_is_refused(seaweed_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(seaweed_bucket.url).list_files()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anotherone")
    with pytest.raises(RemoteError, match=r"access denied .*signature.*: set AWS_ACCESS_KEY_ID and") as caught:
        Store(seaweed_bucket.url).list_files()
    assert caught.value.errno == errno.EACCES
    assert "anotherone" not in str(caught.value)


def test_without_credentials_the_error_names_the_variables(without_keys: Bucket) -> None:
    with pytest.raises(RemoteError, match=r"access denied .*: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        Store(without_keys.url).list_files()


def test_a_profile_gives_keys_and_server(without_keys: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(write_profile(tmp_path, without_keys.server.url, "mine")))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    store = Store(without_keys.url)
    assert store.write_if_unchanged("a", b"x", None) is not None
    assert set(store.list_files()) == {"a"}
    monkeypatch.setenv("AWS_PROFILE", "another")
    with pytest.raises(RemoteError, match=r"The config profile \(another\) could not be found.*set AWS_PROFILE"):
        Store(without_keys.url)


def test_the_default_profile_needs_no_variable(
    without_keys: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(write_profile(tmp_path, without_keys.server.url, "default")))
    Store(without_keys.url).list_files()
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(RemoteError, match=r"extra 'aws', or set AWS_ACCESS_KEY_ID") as caught:
        Store("s3://not-opened-before")
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize("name", ["AWS_SKIP_SIGNATURE", "FSSPEC_S3_ANON"])
def test_a_public_bucket_is_read_without_credentials(
    name: str, without_keys: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = without_keys.server.client
    if not any(bucket["Name"] == "public" for bucket in client.list_buckets()["Buckets"]):
        client.create_bucket(Bucket="public")
    client.put_object(Bucket="public", Key="a", Body=b"x")
    monkeypatch.setenv(name, "true")
    found = Store("s3://public").read_tagged("a")
    assert found is not None
    assert found.content == b"x"
    assert set(Store("s3://public").list_files()) == {"a"}
    with pytest.raises(RemoteError, match="access denied"):
        Store(without_keys.url).list_files()


def test_equal_environments_share_a_client(seaweed_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_bucket(f"{seaweed_bucket.url}/a")
    assert open_bucket(f"{seaweed_bucket.url}/b") is first
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert open_bucket(f"{seaweed_bucket.url}/a") is not first


def test_the_server_must_be_a_url(monkeypatch: pytest.MonkeyPatch, reach: Callable[[str], None]) -> None:
    reach("127.0.0.1:9000")
    with pytest.raises(
        RemoteError, match=r"AWS_ENDPOINT_URL=127\.0\.0\.1:9000 must be a URL that begins with https://"
    ):
        Store("s3://bucket")


def test_a_url_must_name_a_bucket() -> None:
    for url in ("s3://", "s3:///x", "gs://"):
        with pytest.raises(RemoteError, match=r"names no bucket: give (s3|gs)://bucket/folder"):
            open_bucket(url)


def test_azure_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(RemoteError, match=r"az://container/x: .*AZURE_STORAGE_ACCOUNT_NAME"):
        Store("az://container/x")


def test_a_certificate_file_that_is_missing_is_named(seaweed_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/none/such.pem")
    with pytest.raises(RemoteError, match=r"^AWS_CA_BUNDLE=/none/such\.pem: No such file"):
        Store(seaweed_bucket.url)
