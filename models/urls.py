"""Distinguish URLs from local paths, and reject or redact credentials in them."""

import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fineweb_mask.models.errors import SettingsError

SECRET_PARAMETER = re.compile(
    r"^(x-(amz|goog|ms|oss)-.*|sig|signature|.*token|.*secret.*|.*passw(or)?d|pwd|.*credentials?|auth|authorization|"
    r"(.*[-_])?key([-_]?id)?|.*(access|api)key(id)?)$",
    re.IGNORECASE,
)
USER_AND_PASSWORD = re.compile(r"://[^\s/@]*:(?!\d+(?:/|$))[^\s@]*@")
"""A password may contain any character except "@"; `host:port/path@revision` is not one."""
USER = re.compile(r"://[^\s/@]+@")
QUERY = re.compile(r"(://[^\s?#'\"<>]*)[?#][^\s'\"<>]+")
WRITABLE = ("s3://", "s3a://", "gs://", "az://")
HUB = "hf://"
LOCAL = re.compile(r"(file://|/(?!/)|~|[A-Za-z]:[/\\])[^\n]*\Z")
"""An absolute local path, or one in somebody's home folder."""
MOST_SHOWN = 200
"""Characters of a value that an error repeats."""
COMMIT_OF_HUB = re.compile(r"^[^@]*@[0-9a-f]{40}(/|$)")


def is_url(path: str) -> bool:
    """Return whether a path is a URL, or a chain of URLs such as `simplecache::https://...`."""
    return "://" in path


def reject_credentials(path: str) -> str:
    """Return the path or URL unchanged; raise SettingsError, without repeating it, if it may contain credentials."""
    if is_url(path) and any(_holds_credentials(url) for url in path.split("::")):
        raise SettingsError(
            "a URL must contain no user, password, key, token or signature, because it is recorded in the workspace "
            "and in the dataset: put credentials in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "HF_TOKEN)"
        )
    return path


def is_writable_url(path: str) -> bool:
    """Return whether a path is the URL of an object store: s3://, gs:// or az://."""
    return path.startswith(WRITABLE) and "::" not in path


def require_writable(path: str) -> str:
    """Return the path or URL unchanged; raise SettingsError for a URL that can only be read, such as https:// or hf://."""
    if not is_url(path) or path.startswith("file://") or is_writable_url(path):
        return path
    if HUB in path:
        raise SettingsError(
            "hf:// can be a source only: on the hub every file would be a separate commit, and two runs could not "
            "exclude each other: give a folder or s3://bucket/folder, and upload the finished dataset with "
            "`fineweb-mask push`"
        )
    protocol = path.partition("://")[0]
    problem = "can only be read" if protocol in {"http", "https"} else "cannot be written"
    raise SettingsError(f"{protocol}:// {problem}: give a folder or s3://bucket/folder (or gs://, az://)")


def names_a_commit(path: str) -> bool:
    """Return whether a Hugging Face path names a commit (40 hex digits), so that its files never change."""
    return COMMIT_OF_HUB.match(path) is not None


def redacted(text: str) -> str:
    """Return a text with the users, passwords and queries of its URLs replaced by `***`."""
    return QUERY.sub(r"\1?***", USER.sub("://***@", USER_AND_PASSWORD.sub("://***@", text)))


def shown(value: object) -> str:
    """Return a value as an error repeats it: without secrets, and cut where it is long.

    >>> shown("x" * 1_000) == "'" + "x" * 199 + "..."
    True
    """
    text = redacted(repr(value))
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def without_local_folders(settings: Any) -> Any:  # noqa: ANN401
    """Return settings, as JSON has them, with absolute local paths cut to their last part, so that none is published.

    >>> without_local_folders({"path": "/home/me/pages/*.parquet", "model": "file:///srv/m.bin", "other": ["a/b", 1]})
    {'path': 'pages/*.parquet', 'model': 'm.bin', 'other': ['a/b', 1]}
    """
    if isinstance(settings, dict):
        return {name: without_local_folders(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [without_local_folders(value) for value in settings]
    if not isinstance(settings, str) or LOCAL.match(settings) is None:
        return settings
    parts = [part for part in re.split(r"[/\\]", settings) if part] or [""]
    patterns = [place for place, part in enumerate(parts) if "*" in part]
    return "/".join(parts[max(1, patterns[0] - 1) if patterns else -1 :])


def _holds_credentials(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL: for example, an IPv6 address without its bracket
        return True
    has_user = "@" in parts.netloc and parts.scheme != "hf"  # hf://name@revision
    parameters = parse_qsl(parts.query, keep_blank_values=True) + parse_qsl(parts.fragment, keep_blank_values=True)
    secret = any(SECRET_PARAMETER.match(name) for name, _ in parameters)
    return has_user or secret or USER_AND_PASSWORD.search(url) is not None
