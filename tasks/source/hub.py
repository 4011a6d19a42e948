"""Pin a source on the Hugging Face hub to the current commit of its branch.

A branch may move while a run reads from it, and the hub has no conditional range requests. A commit never changes, so a
run reads one version of every file. The fingerprint of a file is git's hash of its content (`blob_id`), so a new commit
leaves the outputs of unchanged files current.
"""

import errno
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from fineweb_mask.models.urls import HUB
from fineweb_mask.tasks.storage.remote.errors import RemoteError, redacted
from fineweb_mask.tasks.storage.remote.retries import attempt

if TYPE_CHECKING:
    from huggingface_hub import HfUri

ANSWER_SECONDS = 10.0

_LOGGERS = ("httpx2", "huggingface_hub.utils._http")
"""Loggers that print URLs: the hub redirects to signed URLs, which give access like a token until they expire."""


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = redacted(record.getMessage()), None
    return True


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_without_secrets)


def pin_commit(url: str) -> str:
    """Return a URL of the hub with its branch or tag replaced by the current commit; other paths are unchanged.

    A bucket (`hf://buckets/...`) has no commits, so its URL is unchanged, too.

    Raises
    ------
    RemoteError
        If the repository or revision does not exist or may not be read, or the URL is malformed.
    UnansweredError
        If the hub keeps failing.
    """
    if not url.startswith(HUB):
        return url
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    try:
        address = parse_hf_uri(url.rstrip("/"))
    except HfUriError as error:
        raise RemoteError(
            errno.EINVAL,
            f"{redacted(url)}: {redacted(str(error))} An address on the hub reads hf://datasets/owner/name/folder, or "
            "hf://datasets/owner/name@branch/folder",
        ) from None
    return address.to_uri() if address.is_bucket else attempt(url, _at_current_commit, address)


def _at_current_commit(address: "HfUri") -> str:
    from huggingface_hub import HfApi

    info = HfApi().repo_info(address.id, repo_type=address.type, revision=address.revision, timeout=ANSWER_SECONDS)
    return replace(address, revision=info.sha).to_uri()
