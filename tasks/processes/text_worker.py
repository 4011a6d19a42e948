"""Extract or filter texts; run with `python -m`.

Usage: `python -m fineweb_mask.tasks.processes.text_worker WORK SOCKET`. WORK is JSON: `"extract"`, or a list of
`FilterSettings`. SOCKET is an inherited file descriptor.

- A page, as bytes, gets `+` and its text in UTF-8, `-` if it has none, or `!` and the kind of error.
- A JSON list of texts with their URLs gets a JSON list of the outcomes.
"""

import json
import logging
import sys
from collections.abc import Callable

from fineweb_mask.models.filters import load_filters
from fineweb_mask.models.pages import extract_text
from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.tasks.processes.worker import serve

TEXT, NO_TEXT, ERROR = b"+", b"-", b"!"
EXTRACT = "extract"
RECURSION = 10_000
"""Nested elements: trafilatura calls itself for each."""


def extracted(page: bytes) -> bytes:
    """Return the answer to a page."""
    try:
        text = extract_text(page)
    except (Exception, RecursionError) as error:  # noqa: BLE001 - of a hostile page, anything
        return ERROR + type(error).__name__.encode()
    return NO_TEXT if text is None else TEXT + text.encode(errors="replace")


def filtering(settings: list[FilterSettings]) -> Callable[[bytes], bytes]:
    """Return the function that answers a list of texts with their URLs."""
    apply = load_filters(settings)

    def filtered(message: bytes) -> bytes:
        return json.dumps([apply(text, url) for text, url in json.loads(message)]).encode()

    return filtered


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # of pages that cannot be parsed, which are counted
    sys.setrecursionlimit(RECURSION)
    work = json.loads(sys.argv[1])
    answer = extracted if work == EXTRACT else filtering([FilterSettings.model_validate(one) for one in work])
    serve(answer, [int(sys.argv[2])])
