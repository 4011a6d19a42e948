"""Filter the texts of a shard, in worker processes where there are enough of them."""

import json
from collections.abc import Callable, Iterator, Sequence

from fineweb_mask.models.filters import Outcome, load_filters
from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.tasks.processes import text_worker
from fineweb_mask.tasks.processes.workers import WorkerProcessError, cores, running_workers

ROWS_WORTH_PROCESSES = 2_000
"""With fewer rows, starting the processes takes about as long as they save."""
PIECE = 20
"""Texts that are sent to a process at a time."""
SECONDS = 3600.0

TextFilter = Callable[[Sequence[str], Sequence[str | None]], Sequence[Outcome]]
"""Takes texts and their URLs."""


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
    workers = running_workers(text_worker.__name__, work, cores(), seconds=SECONDS)

    def ask(piece: list[tuple[str, str | None]]) -> list[Outcome]:
        answer = workers.ask(json.dumps(piece).encode())
        if not isinstance(answer, bytes):
            raise WorkerProcessError("a process that filters texts ended before it answered: run again")
        return [Outcome(*one) for one in json.loads(answer)]

    def filtered(texts: Sequence[str], urls: Sequence[str | None]) -> list[Outcome]:
        pairs = list(zip(texts, urls, strict=True))
        return [outcome for outcomes in workers.map(ask, _pieces(pairs)) for outcome in outcomes]

    return filtered


def _pieces(pairs: list[tuple[str, str | None]]) -> Iterator[list[tuple[str, str | None]]]:
    for start in range(0, len(pairs), PIECE):
        yield pairs[start : start + PIECE]
