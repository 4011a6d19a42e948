"""URLs are distinguished from paths; credentials in them are rejected or redacted."""

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.urls import is_url, names_a_commit, redacted, reject_credentials, require_writable


@pytest.mark.parametrize(
    ("path", "has_scheme"),
    [
        *((path, False) for path in ("folder", "/a/b", "C:\\data", "s3:bucket", "a@b?token=1")),
        ("hf://datasets/owner/name@revision/file", True),
        ("https://example.org:8080/a@b/file.parquet?download=true&page=2", True),
        ("https://example.org/?monkey=1", True),
        ("simplecache::https://example.org/file.parquet", True),
    ],
)
def test_a_local_path_may_hold_anything_and_a_url_without_credentials_is_taken(path, has_scheme):
    assert is_url(path) == has_scheme
    assert reject_credentials(path) == path


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:hun/ter2@bucket/x",
        "https://hunter2@example.org/x",
        "hf://user:hunter2@datasets/x",
        "simplecache::https://user:hunter2@example.org/x",
        "https://example.org/x?a=1&X-Goog-Credential=hunter2",
        "https://example.org/x?se=2026&sig=hunter2",
        "https://example.org/x#token=hunter2",
        "s3://bucket/x?secret_key=hunter2",
        "https://[hunter2",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_repeated(url):
    with pytest.raises(SettingsError, match="put credentials in the environment") as caught:
        reject_credentials(url)
    assert "hunter2" not in str(caught.value)
    if "[" not in url:
        assert "hunter2" not in redacted(f"cannot read '{url}': no")


def test_redaction_leaves_the_rest_and_a_commit_is_distinguished_from_a_branch():
    assert redacted("get https://example.org/a/b?x=1 failed") == "get https://example.org/a/b?*** failed"
    assert redacted("a?b@c: hf://name@rev/file") == "a?b@c: hf://***@rev/file"
    assert redacted("https://example.org:80/a@b") == "https://example.org:80/a@b"

    commit = "5ec40abed54d4464a454600f16bcb8739cce190c"
    assert names_a_commit(f"hf://datasets/x/y@{commit}")
    assert names_a_commit(f"datasets/x/y@{commit}/data/a.parquet")
    for path in ("datasets/x/y", "datasets/x/y@main/a", f"datasets/x/y@{commit}0/a", f"datasets/x/y@main/b@{commit}/a"):
        assert not names_a_commit(path)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://example.org/x", "can only be read"),
        ("simplecache::hf://datasets/x/y", r"give a folder or s3://bucket/folder, .* with `fineweb-mask push`"),
    ],
)
def test_https_and_the_hub_can_only_be_read_and_the_message_names_the_remedy(url, says):
    with pytest.raises(SettingsError, match=says):
        require_writable(url)
    for writable in ("s3://bucket/x", "folder", "file:///folder"):
        assert require_writable(writable) == writable
