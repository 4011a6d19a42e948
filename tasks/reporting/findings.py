"""Say in a few sentences what a selection did, and what in it to worry about; each leads to its section."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fineweb_mask.models.losses import Wiped
from fineweb_mask.models.settings.quality import SAMPLE_LABELS, scores_by_sample_labels
from fineweb_mask.tasks.reporting.breakdown import Breakdown
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.geometry import Diversity
from fineweb_mask.tasks.reporting.page import Finding
from fineweb_mask.tasks.reporting.sections.losses import LOSSES
from fineweb_mask.tasks.reporting.sections.optimum import claim
from fineweb_mask.tasks.reporting.sections.shares import GROUPS
from fineweb_mask.tasks.workspace.records.counts import Counts

DROPPED = 0.5  # share of the source above which it is said that most of it never came to the selection
DUPLICATES = 0.01  # share of near-duplicates from which they are reported
LARGE_GROUP = 0.01  # share of the eligible documents from which a group's absence is reported
LOST = 0.1  # share of what a group would have at random below which it has vanished
FROM_THE_TOP = 0.6  # share of the selection that is of the best tenth, above which quality alone decides
LENGTH_CHANGE = 2.0  # times that the median length grew or shrank
MOST_GROUPS = 3  # named

Worry = tuple[str, str]
"""What to worry about, and the title of the section that shows it."""


def findings(
    recipe: Mapping[str, Any],
    counts: Counts,
    blocks: Sequence[Mapping[str, Any]],
    breakdown: Breakdown,
    measured: Diversity | None,
    taught: Sequence[Finding] = (),
    wiped: Sequence[Wiped] = (),
) -> list[Finding]:
    """Return what the selection did and `taught`, then what to worry about, or that nothing stands out."""
    share = counts.selected / max(counts.documents_eligible, 1)
    did = Finding(
        f"{counts.selected:,} of {counts.documents_eligible:,} eligible documents are selected, {share:.1%}. "
        f"{claim([dict(block) for block in blocks])}",
        "Distance from the optimum",
    )
    found = [(SAMPLE_LABELS, "Quality and length")] if scores_by_sample_labels(recipe) else []
    found += [*_dropped(counts), *_wiped_groups(wiped), *_near_duplicates(measured), *_lost_groups(breakdown)]
    worries = [Finding(*one, is_worry=True) for one in (*found, *_one_score(breakdown), *_length(breakdown))]
    nothing = Finding(
        "Nothing stands out: near-duplicates are no more than a random subset's, no large group has vanished, and "
        "quality is not all that decides.",
        "Diversity" if measured is not None else "Share selected by group",
    )
    if not worries and not any(one.is_worry for one in taught):
        worries = [nothing]
    return [did, *taught, *_compared(breakdown, measured), *worries]


def _compared(breakdown: Breakdown, measured: Diversity | None) -> Iterator[Finding]:
    quality = breakdown.histograms["quality"].medians()
    if quality is not None:
        yield Finding(
            f"The median quality is {quality[1]:+.2f} standard deviations, {quality[0]:+.2f} of all that was eligible.",
            "Quality and length",
        )
    if measured is not None:
        random, selected = measured.geometry["random"], measured.geometry["selected"]
        how = "more" if selected.effective_rank > random.effective_rank else "less"
        yield Finding(
            f"It is {how} diverse than a random subset of its size: an effective rank of "
            f"{selected.effective_rank:,.0f}, {random.effective_rank:,.0f} at random.",
            "Diversity",
        )


def _dropped(counts: Counts) -> Iterator[Worry]:
    lost = counts.documents_in - counts.documents_eligible
    if lost > DROPPED * counts.documents_in:
        reason, number = max(counts.dropped.items(), key=lambda item: item[1])
        yield (
            f"{lost / counts.documents_in:.0%} of the source never came to the selection, most of it as "
            f"{reason.replace('_', ' ')} ({number:,} documents).",
            "Where documents went",
        )


def _near_duplicates(measured: Diversity | None) -> Iterator[Worry]:
    if measured is None:
        return
    random, selected = (measured.geometry[name].near_duplicates for name in ("random", "selected"))
    if selected is not None and selected >= DUPLICATES and selected > (random or 0.0):
        yield (
            f"{selected:.1%} of the selection are near-duplicates, {random or 0.0:.1%} of a random subset: raise "
            "selection.near_duplicates.weight, or set selection.near_duplicates.forbid.",
            "Diversity",
        )


def _wiped_groups(wiped: Sequence[Wiped]) -> Iterator[Worry]:
    for one in wiped[:MOST_GROUPS]:
        said = str(one)
        yield f"{said[0].upper()}{said[1:]}.", LOSSES
    if len(wiped) > MOST_GROUPS:
        yield f"{len(wiped) - MOST_GROUPS:,} more groups are wiped out by one step before the selection.", LOSSES


def _lost_groups(breakdown: Breakdown) -> Iterator[Worry]:
    for name, rows in breakdown.groups.items():
        total, selected = sum(row.documents for row in rows), sum(row.selected for row in rows)
        lost = [
            row
            for row in rows
            if row.documents >= LARGE_GROUP * total and row.selected < LOST * row.documents * selected / max(total, 1)
        ]
        if lost and len(rows) > 1:
            yield (
                f"Nearly nothing is left of {_named(lost)} (by {GROUPS.get(name, name)}).",
                "Share selected by group",
            )


def _named(rows: Sequence[Share]) -> str:
    largest = sorted(rows, key=lambda row: -row.documents)
    named = ", ".join(f"{row.label!r} ({row.selected:,} of {row.documents:,})" for row in largest[:MOST_GROUPS])
    return named + (f" and {len(rows) - MOST_GROUPS:,} more" if len(rows) > MOST_GROUPS else "")


def _one_score(breakdown: Breakdown) -> Iterator[Worry]:
    rows = breakdown.deciles.get("quality", [])
    selected = sum(row.selected for row in rows)
    if len(rows) == 10 and rows[-1].selected > FROM_THE_TOP * selected > 0:
        yield (
            f"{rows[-1].selected / selected:.0%} of the selection is of the best tenth by quality: quality alone "
            "decides. A lower selection.lamb gives diversity more weight.",
            "Share selected by group",
        )


def _length(breakdown: Breakdown) -> Iterator[Worry]:
    found = breakdown.histograms["n_chars"].medians()
    if found is None or min(found) <= 0:
        return
    before, after = found
    times = max(before / after, after / before)
    if times >= LENGTH_CHANGE:
        yield (
            f"The selected texts are {'shorter' if after < before else 'longer'}: half of them have more than "
            f"{after:,.0f} characters, {before:,.0f} before.",
            "Quality and length",
        )
