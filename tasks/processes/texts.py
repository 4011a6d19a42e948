"""Extract and filter texts in worker processes; run with `python -m`, this module is such a process.

Usage: `python -m fineweb_mask.tasks.processes.texts WORK`. WORK is JSON: `"extract"`, or a list of `FilterSettings`.

- The charset that a server named, or none, a line feed and its page get `+` and the page's text in UTF-8, `-` if it has
  none, or `!` and the kind of error.
- A JSON list of texts with their URLs gets a JSON list of the outcomes.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from fineweb_mask.models.documents import TextFilter
from fineweb_mask.models.filters import Outcome, load_filters
from fineweb_mask.models.pages import extract_text
from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.tasks.processes.workers import WorkerProcessError, Workers, cores, running_workers, serve

TEXT, NO_TEXT, ERROR = b"+", b"-", b"!"
EXTRACT = "extract"
RECURSION = 10_000
"""Nested elements: trafilatura calls itself for each."""
ROWS_WORTH_PROCESSES = 2_000
"""With fewer rows, starting the processes takes about as long as they save."""
PIECE = 20
"""Texts that are sent to a process at a time."""
PAGE_SECONDS, PIECE_SECONDS = 60.0, 3600.0


def with_texts(
    records: Iterable[dict[str, Any] | str], workers: Workers | None = None
) -> Iterator[dict[str, Any] | str]:
    """Yield the records in their order, `page` and `charset` of each replaced by a `text`, or a problem in its place.

    A record is a dictionary, or the problem for which it could not be read; one without a `page` stays as it is.
    Problems of pages are `no_text`, `broken_page` and `too_slow`, which a limit on the time of a page causes.
    """
    workers = workers or running_workers(__name__, json.dumps(EXTRACT), cores(), seconds=PAGE_SECONDS)
    return workers.map(partial(_with_text, workers), records)


def _with_text(workers: Workers, record: dict[str, Any] | str) -> dict[str, Any] | str:
    if isinstance(record, str) or "page" not in record:
        return record
    answer = workers.ask(b"%s\n%s" % (record.pop("charset", "").encode(), record.pop("page")))
    if answer == "too_slow":
        return "too_slow"
    if isinstance(answer, bytes) and answer[:1] == TEXT:
        return {**record, "text": answer[1:].decode()}
    return "no_text" if answer == NO_TEXT else "broken_page"


def text_filter(settings: Sequence[FilterSettings], rows: int) -> TextFilter:
    """Return the function that applies filters to the texts of a shard of so many rows.

    Raises
    ------
    FilterError
        If datatrove or what one of its classes needs is not installed.
    SettingsError
        If a class has no such option, or refuses its value.
    """
    apply = load_filters(settings)
    if rows < ROWS_WORTH_PROCESSES or cores() == 1:
        return lambda texts, urls: [apply(text, url) for text, url in zip(texts, urls, strict=True)]
    work = json.dumps([one.model_dump(mode="json") for one in settings])
    workers = running_workers(__name__, work, cores(), seconds=PIECE_SECONDS)

    def ask(piece: list[tuple[str, str | None]]) -> list[Outcome]:
        answer = workers.ask(json.dumps(piece).encode())
        if not isinstance(answer, bytes):
            raise WorkerProcessError("a process that filters texts ended before it answered: run again")
        return [Outcome(*one) for one in json.loads(answer)]

    def filtered(texts: Sequence[str], urls: Sequence[str | None]) -> list[Outcome]:
        pairs = list(zip(texts, urls, strict=True))
        pieces = (pairs[start : start + PIECE] for start in range(0, len(pairs), PIECE))
        return [outcome for outcomes in workers.map(ask, pieces) for outcome in outcomes]

    return filtered


def extracted(message: bytes) -> bytes:
    """Return the answer to a charset and a page."""
    charset, _, page = message.partition(b"\n")
    try:
        text = extract_text(page, charset.decode())
    except (Exception, RecursionError) as error:  # noqa: BLE001 - of a hostile page, anything
        return ERROR + type(error).__name__.encode()
    return NO_TEXT if text is None else TEXT + text.encode(errors="replace")


def filtering(settings: list[FilterSettings]) -> Callable[[bytes], bytes]:
    """Return the function that answers a list of texts with their URLs."""
    apply = load_filters(settings)
    return lambda message: json.dumps([apply(text, url) for text, url in json.loads(message)]).encode()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # pages that cannot be parsed are counted
    sys.setrecursionlimit(RECURSION)
    work = json.loads(sys.argv[1])
    answer = extracted if work == EXTRACT else filtering([FilterSettings.model_validate(one) for one in work])
    serve(answer)
