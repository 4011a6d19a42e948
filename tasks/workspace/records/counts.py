"""Count every document and token by stage and drop reason."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from fineweb_mask.tasks.workspace.references import NOT_KEPT, StageFile

DROPPED_BY = {
    "null_text": "source.text_column",
    "empty_text": "source.text_column",
    "too_short": "ingest.min_chars",
    "wrong_language": "ingest.languages",
    "low_language_score": "ingest.min_language_score",
    "benchmark": "ingest.decontaminate",
    "known": "ingest.against",
    "excluded": "ingest.exclude",
}
"""The setting that drops documents, by their reason."""


GROUP_SUMS = ("documents", "selected", "tokens_selected", "budget")
"""Of blocks that are groups of documents: what `add_groups` adds up."""


class Amount(NamedTuple):
    """Number of documents and tokens."""

    documents: int
    tokens: int


class Counts(BaseModel):
    """Counts of a run, where `documents_in = selected + not_selected + sum(dropped.values())`."""

    model_config = ConfigDict(frozen=True)

    documents_in: int
    documents_ingested: int
    documents_eligible: int
    selected: int
    not_selected: int
    dropped: dict[str, int]  # by reason
    tokens_in: int
    tokens_ingested: int
    tokens_eligible: int
    tokens_selected: int
    tokens_estimated: int  # ingested documents whose tokens were estimated from their length

    @property
    def estimated(self) -> str:
        """Whether tokens are estimated, all or in part, in words; of counted tokens, nothing."""
        if not self.tokens_estimated:
            return ""
        return "estimated" if self.tokens_estimated == self.documents_ingested else "in part estimated"

    @property
    def amounts(self) -> dict[str, Amount]:
        """What there is of each state that a document passes through; `Stage.counts` names two of them."""
        ingested = Amount(self.documents_ingested, self.tokens_ingested)
        eligible = Amount(self.documents_eligible, self.tokens_eligible)
        return {
            "source": Amount(self.documents_in, self.tokens_in),
            "ingested": ingested,
            "eligible": eligible if set(NOT_KEPT) & set(self.dropped) else ingested,
            "selected": Amount(self.selected, self.tokens_selected),
        }


def account(ingested: list[StageFile], masks: list[StageFile]) -> Counts:
    """Return the counts over all shards, from what ingest and select recorded."""
    dropped: Counter[str] = Counter()
    for file in [*ingested, *masks]:
        dropped.update(file.details.get("dropped", {}))
        dropped.update(file.details.get("excluded", {}))
    blocks = [block for file in masks for block in file.details["blocks"]]

    def total(entries: list[dict[str, Any]], name: str) -> int:
        return sum(int(entry[name]) for entry in entries)

    details = [file.details for file in ingested]
    return Counts(
        documents_in=total(details, "rows_in"),
        documents_ingested=sum(file.rows for file in ingested),
        documents_eligible=total(blocks, "documents"),
        selected=total(blocks, "selected"),
        not_selected=total(blocks, "documents") - total(blocks, "selected"),
        dropped={reason: count for reason, count in sorted(dropped.items()) if count},
        tokens_in=total(details, "tokens_in"),
        tokens_ingested=total(details, "tokens"),
        tokens_eligible=total(blocks, "tokens"),
        tokens_selected=total(blocks, "tokens_selected"),
        tokens_estimated=total(details, "tokens_estimated"),
    )


def why_none_is_left(ingested: list[StageFile]) -> str:
    """Return why ingest kept no document of the source files: the reasons, most frequent first, with their settings.

    Examples
    --------
    >>> details = {"rows_in": 9, "tokens_in": 0, "tokens": 0, "tokens_estimated": 0, "dropped": {"known": 9}}
    >>> file = StageFile(stage="ingest", name="a", path="a", rows=0, bytes=0, fingerprint="", details=details)
    >>> why_none_is_left([file])
    'no document of 9 is left: 9 known (ingest.against): change what drops them, or the source'
    """
    counts = account(ingested, [])
    if not counts.documents_in:
        return "source.path: the files hold no documents: give files that do"
    reasons = ", ".join(
        f"{count:,} {reason.replace('_', ' ')}" + (f" ({DROPPED_BY[reason]})" if reason in DROPPED_BY else "")
        for reason, count in sorted(counts.dropped.items(), key=lambda item: -item[1])
    )
    return f"no document of {counts.documents_in:,} is left: {reasons}: change what drops them, or the source"


def mean_terms(masks: list[StageFile]) -> tuple[float | None, dict[str, float]]:
    """Return the objective and its terms, averaged over the blocks by their documents; where none is selected aside.

    The mean quality is that of all selected documents.
    """
    blocks = [block for file in masks for block in file.details["blocks"] if block["terms"]]
    if not any(block["documents"] for block in blocks):
        return None, {}
    terms = {name: mean_of([block["terms"][name] for block in blocks], blocks) for name in blocks[0]["terms"]}
    if "mean_quality" in terms:
        terms["mean_quality"] = mean_of([block["terms"]["mean_quality"] for block in blocks], blocks, "selected")
    return mean_of([block["objective"] for block in blocks], blocks), terms


def add_groups(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the blocks of each group of documents, most documents first.

    Examples
    --------
    >>> block = {"group": "a", "documents": 5, "selected": 1, "tokens_selected": 90, "budget": 1.5}
    >>> add_groups([block, block])
    [{'group': 'a', 'documents': 10, 'selected': 2, 'tokens_selected': 180, 'budget': 3.0}]
    """
    found = dict[str, dict[str, Any]]()
    for block in blocks:
        total = found.setdefault(block["group"], {"group": block["group"]} | dict.fromkeys(GROUP_SUMS, 0))
        for name in GROUP_SUMS:
            total[name] += block[name]
    return sorted(found.values(), key=lambda group: (-group["documents"], group["group"]))


def mean_of(values: Sequence[float], blocks: Sequence[Mapping[str, Any]], weight: str = "documents") -> float:
    """Return the mean of a value per block, weighted by this count of each block; 0 if all counts are 0."""
    total = sum(block[weight] for block in blocks)
    return float(sum(value * block[weight] for value, block in zip(values, blocks, strict=True)) / max(total, 1))
