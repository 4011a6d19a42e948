"""Credentials, servers and certificates are taken from the environment."""

from contextlib import suppress

import pytest

from fineweb_mask.tasks.storage.remote.buckets import open_bucket
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.storage.remote.object_store import Store
from tests.conftest import Bucket
from tests.s3 import free_port

NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch, seaweed_bucket: Bucket) -> Bucket:
    """A bucket of a server that checks signatures, and an environment without credentials."""
    for name in NAMES:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")  # this is no machine of Amazon's
    return seaweed_bucket


def test_without_credentials_the_error_names_the_variables(without_keys: Bucket) -> None:
    with pytest.raises(RemoteError, match=r"access denied .*: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        Store(without_keys.url).sizes()


def test_a_public_bucket_is_read_without_credentials(without_keys: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    client = without_keys.server.client
    with suppress(client.exceptions.ClientError):
        client.create_bucket(Bucket="public")
    client.put_object(Bucket="public", Key="a", Body=b"x")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert set(Store("s3://public").sizes()) == {"a"}
    with pytest.raises(RemoteError, match="access denied"):
        Store(without_keys.url).sizes()


def test_equal_environments_share_a_client(seaweed_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_bucket(f"{seaweed_bucket.url}/a")
    assert open_bucket(f"{seaweed_bucket.url}/b") is first
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert open_bucket(f"{seaweed_bucket.url}/a") is not first


@pytest.mark.parametrize(
    ("variables", "url", "message"),
    [
        (
            {"AWS_ENDPOINT_URL": "127.0.0.1:9000"},
            "s3://b",
            r"AWS_ENDPOINT_URL=127\.0\.0\.1:9000 must be a URL .*https://",
        ),
        ({"AWS_CA_BUNDLE": "/none/such.pem"}, "s3://b", r"^AWS_CA_BUNDLE=/none/such\.pem: No such file"),
        ({}, "s3:///x", r"names no bucket: give s3://bucket/folder"),
        ({}, "az://container/x", r"az://container/x: .*AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_what_no_store_can_be_opened_with_is_named(variables, url, message, monkeypatch, reach):
    reach("http://127.0.0.1:9000")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RemoteError, match=message):
        Store(url)
