"""Count documents by the values of their columns and by what drops them; find the groups that a step wipes out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.errors import SettingsError

MOST_VALUES = 1_000
"""Values of a column in one source file, above which it names no groups: each has a count in memory."""
LONGEST_VALUE = 200  # characters
NOT_COUNTED = frozenset({"text", "id", "url", "token_count", "source_row", "content_hash"})
"""Columns in which nearly every document has a value of its own."""
WIPED_SHARE = 0.05
"""Share of a group that a step keeps at least, else the group is wiped out."""
LEAST_DOCUMENTS = 20
"""A group of fewer is not said to be wiped out."""
NAMED_REASONS = 3
LATER = (("dedup", "duplicate"), ("dedup", "near_duplicate"), ("dedup", "same_url"), ("select", "bad_vector"))
"""Stages and reasons after ingest, in the order in which they drop documents."""
OTHER_NAMES = {
    "duplicate": "exact duplicates",
    "near_duplicate": "near-duplicates",
    "same_url": "pages of an equal URL",
    "bad_vector": "without a vector",
}


def names_groups(kind: pa.DataType) -> bool:
    """Return whether the values of a column of this type may be groups: texts, whole numbers and booleans."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)  # as pandas writes them
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


class OutcomeCounts:
    """Numbers of documents by the value of each column and by why they were dropped, None for those that were kept.

    A column of other types, of long texts, or of more than `MOST_VALUES` values is left out as soon as that is seen.

    Parameters
    ----------
    wanted
        Columns that must not be left out.

    Examples
    --------
    >>> counted = OutcomeCounts()
    >>> counted.add(pa.record_batch({"source": ["a", "a", "b"], "weight": [0.5, 0.5, 0.5]}), [None, "too_short", None])
    >>> sorted(counted.counts["source"].items(), key=str), sorted(counted.kinds)
    ([(('a', 'too_short'), 1), (('a', None), 1), (('b', None), 1)], ['source'])
    """

    def __init__(self, wanted: Iterable[str] = ()) -> None:
        self.wanted = frozenset(wanted)
        self.counts: dict[str, Counter[tuple[str | None, str | None]]] = defaultdict(Counter)
        self.kinds: dict[str, str] = {}  # types of the columns that are counted
        self.many: set[str] = set()  # columns of too many values, or too long ones
        self._values: dict[str, set[str | None]] = defaultdict(set)

    def add(self, rows: pa.RecordBatch, reasons: Sequence[str | None]) -> None:
        """Count n rows, of which each is dropped for its reason, or kept.

        Raises
        ------
        SettingsError
            If a wanted column has too many values.
        """
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if name in NOT_COUNTED - self.wanted or name in self.many or not names_groups(column.type):
                continue
            encoded = column.dictionary_encode()
            raw = encoded.dictionary.cast(pa.string()).cast(pa.binary())  # a dropped row may be invalid UTF-8
            values = [value.decode("utf-8", "replace") or None for value in raw.to_pylist()]
            self.kinds[name] = str(column.type).removeprefix("large_")
            self._values[name].update(values)
            if len(self._values[name]) > MOST_VALUES or any(len(value or "") > LONGEST_VALUE for value in values):
                self._leave_out(name)
                continue
            counts = self.counts[name]
            for (place, reason), number in Counter(zip(encoded.indices.to_pylist(), reasons, strict=True)).items():
                counts[None if place is None else values[place], reason] += number

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers as rows, in the order of columns, values and reasons."""
        found = [
            {"by_column": name, "value": value, "reason": reason, "documents": number}
            for name, counts in self.counts.items()
            for (value, reason), number in counts.items()
        ]
        return sorted(found, key=lambda row: [row["by_column"], row["value"] or "", row["reason"] or ""])

    def _leave_out(self, name: str) -> None:
        if name in self.wanted:
            raise too_many_values(name, f"{MOST_VALUES:,} in one file, of {LONGEST_VALUE} characters")
        self.many.add(name)
        for found in (self.counts, self.kinds, self._values):
            found.pop(name, None)


def too_many_values(column: str, most: str) -> SettingsError:
    """Return the error for a column that is to name groups and has more values than can be counted."""
    return SettingsError(
        f"ingest.groups: the column {column!r} has too many values, or too long ones, to name groups; allowed are "
        f"{most}: name another, or leave it out"
    )


def labels(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the values of a column as `OutcomeCounts` counts them: as text, null for an empty one."""
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


class Loss(NamedTuple):
    """What a step drops of a group; one that loses nothing has one without a step."""

    by_column: str
    value: str | None  # None: the documents without a value
    stage: str | None  # ingest, dedup or select
    reason: str | None
    documents: int  # of the group that come to the step; of all reasons of ingest, those in the source
    dropped: int


class GroupLosses(NamedTuple):
    """What each step drops of a group, in the order of the steps."""

    by_column: str
    value: str | None
    documents: int  # in the source
    dropped: dict[str, dict[str, int]]  # by step: ingest as a whole, then single reasons; by reason

    @property
    def kept(self) -> int:
        """Documents that no step drops."""
        return self.documents - sum(sum(reasons.values()) for reasons in self.dropped.values())


def losses(group: tuple[str, str | None], counts: Mapping[tuple[str, str | None], int]) -> list[Loss]:
    """Return what every step drops of a group: column and value, and numbers by stage and reason.

    Examples
    --------
    >>> counts = {("ingest", None): 5, ("ingest", "too_short"): 4, ("dedup", "duplicate"): 2}
    >>> for loss in losses(("source", "a"), counts):
    ...     print(*loss)
    source a ingest too_short 9 4
    source a dedup duplicate 5 2
    """
    source = sum(number for (stage, _), number in counts.items() if stage == "ingest")
    left = counts.get(("ingest", None), 0)
    found = [
        Loss(*group, stage, reason, source, number)
        for (stage, reason), number in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
        if stage == "ingest" and reason is not None
    ]
    for stage, reason in LATER:
        if number := counts.get((stage, reason), 0):
            found.append(Loss(*group, stage, reason, left, number))
            left -= number
    return found or [Loss(*group, None, None, source, 0)]


def by_group(rows: Iterable[Loss]) -> list[GroupLosses]:
    """Gather what the steps drop of each group, in the order of the rows."""
    found: dict[tuple[str, str | None], GroupLosses] = {}
    for row in rows:
        group = found.setdefault((row.by_column, row.value), GroupLosses(row.by_column, row.value, row.documents, {}))
        if row.reason is not None:
            step = "ingest" if row.stage == "ingest" else row.reason
            group.dropped.setdefault(step, {})[row.reason] = row.dropped
    return list(found.values())


class Wiped(NamedTuple):
    """A group of which a step keeps less than a share."""

    by_column: str
    value: str
    step: str
    documents: int  # that came to the step
    kept: int  # by it
    reasons: dict[str, int]  # what it dropped

    def __str__(self) -> str:
        largest = sorted(self.reasons.items(), key=lambda item: -item[1])[:NAMED_REASONS]
        why = ", ".join(f"{number:,} {reason_name(reason)}" for reason, number in largest)
        stage = "ingest" if self.step == "ingest" else "deduplication" if self.step != "bad_vector" else "embed"
        return (
            f"{stage} keeps {self.kept:,} of {self.documents:,} documents ({self.kept / self.documents:.1%}) of "
            f"{self.by_column} {self.value!r}: {why}"
        )


def reason_name(reason: str) -> str:
    """Return a reason as it is shown to people."""
    return OTHER_NAMES.get(reason, reason.replace("_", " "))


def wiped_out(groups: Iterable[GroupLosses], share: float) -> list[Wiped]:
    """Return the groups of which one step keeps less than this share, with the step; those that lose most come first.

    Documents without a value are no group: lines that could not be read have none.
    """
    found = []
    for group in groups:
        left = group.documents
        for step, reasons in group.dropped.items():
            before = left
            left -= sum(reasons.values())
            if group.value is not None and before >= LEAST_DOCUMENTS and left < share * before:
                found.append(Wiped(group.by_column, group.value, step, before, left, reasons))
    return sorted(found, key=lambda one: (one.kept - one.documents, one.by_column, one.value))
