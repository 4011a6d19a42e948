"""Say what every step drops of a group of documents, and which groups a step wipes out."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

WIPED_SHARE = 0.05
"""Share of a group that a step keeps at least, else the group is wiped out."""
LEAST_DOCUMENTS = 20
"""A group of fewer is not said to be wiped out."""
NAMED_REASONS = 3
OTHER_NAMES = {
    "duplicate": "exact duplicates",
    "near_duplicate": "near-duplicates",
    "same_url": "pages of an equal URL",
    "excluded": "excluded",
    "bad_vector": "without a vector",
}
"""What reasons after ingest are called, in the order in which they drop documents; each is a step."""


def names_groups(kind: pa.DataType) -> bool:
    """Return whether the values of a column of this type may be groups: texts, whole numbers and booleans."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)  # as pandas writes them
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def reason_name(reason: str) -> str:
    """Return a reason as it is shown to people."""
    return OTHER_NAMES.get(reason, reason.replace("_", " "))


class GroupLosses(NamedTuple):
    """What each step drops of a group, in the order of the steps."""

    by_column: str
    value: str | None  # None: the documents without a value
    documents: int  # in the source
    dropped: dict[str, dict[str, int]]  # by step: ingest as a whole, then single reasons; by reason

    @property
    def kept(self) -> int:
        """Documents that no step drops."""
        return self.documents - sum(sum(reasons.values()) for reasons in self.dropped.values())


def by_group(rows: Iterable[Mapping[str, Any]]) -> list[GroupLosses]:
    """Gather what the steps drop of each group, in the order of the rows, which are of `LOSSES`.

    Examples
    --------
    >>> group = {"by_column": "source", "value": "a"}
    >>> found = by_group(
    ...     [
    ...         group | {"stage": "ingest", "reason": "too_short", "documents": 9, "dropped": 4},
    ...         group | {"stage": "dedup", "reason": "duplicate", "documents": 5, "dropped": 2},
    ...     ]
    ... )
    >>> found[0].dropped, found[0].kept
    ({'ingest': {'too_short': 4}, 'duplicate': {'duplicate': 2}}, 3)
    """
    found: dict[tuple[str, str | None], GroupLosses] = {}
    for row in rows:
        key = (row["by_column"], row["value"])
        group = found.setdefault(key, GroupLosses(*key, row["documents"], {}))
        if row["reason"] is not None:
            step = "ingest" if row["stage"] == "ingest" else row["reason"]
            group.dropped.setdefault(step, {})[row["reason"]] = row["dropped"]
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
