"""Extract the texts of pages in worker processes, in order, with a limit on the time of a page."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fineweb_mask.tasks.processes import text_worker
from fineweb_mask.tasks.processes.text_worker import EXTRACT, NO_TEXT, TEXT
from fineweb_mask.tasks.processes.workers import Workers, cores, running_workers

SECONDS = 60.0


def with_texts(
    records: Iterable[dict[str, Any] | str], workers: Workers | None = None
) -> Iterator[dict[str, Any] | str]:
    """Yield the records in their order, the value `page` of each replaced by a `text`, or a problem in its place.

    A record is a dictionary, or the problem for which it could not be read; one without a `page` stays as it is.
    Problems of pages are `no_text`, `broken_page` and `too_slow`.
    """
    workers = workers or running_workers(text_worker.__name__, json.dumps(EXTRACT), cores(), seconds=SECONDS)
    return workers.map(partial(_with_text, workers), records)


def _with_text(workers: Workers, record: dict[str, Any] | str) -> dict[str, Any] | str:
    if isinstance(record, str) or "page" not in record:
        return record
    answer = workers.ask(record.pop("page"))
    if answer == "too_slow":
        return "too_slow"
    if isinstance(answer, bytes) and answer[:1] == TEXT:
        return {**record, "text": answer[1:].decode()}
    return "no_text" if answer == NO_TEXT else "broken_page"
