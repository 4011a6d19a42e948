"""A source on the Hugging Face hub: read at the commit that its branch is at when the run looks for files.

A branch may move while a run reads from it, and the hub does not serve a part of a file on condition that the file is
still the same. A commit never changes: every file is read in one version, and a run ends with what it began with. What
a run finds changed is told by the names that git has for contents (`blob_id`), so a commit that leaves a file as it is
leaves what was made of it current.
"""

import errno
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from fineweb_mask.models.urls import HUB
from fineweb_mask.tasks.storage.errors import RemoteError, redacted
from fineweb_mask.tasks.storage.retries import attempt

if TYPE_CHECKING:
    from huggingface_hub import HfUri

ANSWER_SECONDS = 10.0

_LOGGERS = ("httpx2", "huggingface_hub.utils._http")
"""They log addresses, and the hub redirects to addresses with a signature, which is as good as a token for a while."""


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = redacted(record.getMessage()), None
    return True


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_without_secrets)


def pinned(url: str) -> str:
    """Return a URL of the hub with the commit that it stands for now; another path as it is.

    A bucket (`hf://buckets/...`) has no commits, and stays as it is, too.

    Raises
    ------
    RemoteError
        If there is no such repository or revision, it may not be read, or the URL names none.
    UnansweredError
        If the hub does not answer.
    """
    if not url.startswith(HUB):
        return url
    from huggingface_hub import parse_hf_uri

    try:
        place = parse_hf_uri(url.rstrip("/"))
    except ValueError as error:
        raise RemoteError(
            errno.EINVAL,
            f"{redacted(url)}: {redacted(str(error))} An address on the hub reads hf://datasets/owner/name/folder, or "
            "hf://datasets/owner/name@branch/folder",
        ) from None
    return place.to_uri() if place.is_bucket else attempt(url, _at_its_commit, place)


def _at_its_commit(place: "HfUri") -> str:
    from huggingface_hub import HfApi

    found = HfApi().repo_info(place.id, repo_type=place.type, revision=place.revision, timeout=ANSWER_SECONDS)
    return replace(place, revision=found.sha).to_uri()
