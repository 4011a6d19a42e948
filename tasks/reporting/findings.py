"""Say first what a selection gained, what it lost, and why to doubt it; each sentence says of what, and leads on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fineweb_mask.models.losses import Wiped
from fineweb_mask.models.settings.quality import quality_note
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.tasks.reporting.breakdown import Breakdown, SelectedShare
from fineweb_mask.tasks.reporting.geometry import Diversity
from fineweb_mask.tasks.reporting.page import Finding
from fineweb_mask.tasks.reporting.sections import (
    BY_GROUP,
    DIVERSITY,
    FUNNEL,
    GROUPS,
    LOSSES,
    OPTIMUM,
    QUALITY,
    claim,
    median,
    widest_gap,
)
from fineweb_mask.tasks.workspace.records.counts import Counts

GAINED, LOST, DOUBT = HEADINGS = ("What was gained", "What was lost", "Why to doubt it")
DROPPED = 0.5  # share of the source above which it is said that most of it never came to the selection
DUPLICATES = 0.01  # share of near-duplicates from which they are reported
LARGE_GROUP = 0.01  # share of the eligible documents from which a group's loss is reported
LOST_SHARE = 0.5  # of what a group would have at random, below which it has lost
CHANCE = 3.0  # standard deviations by which a loss is larger than chance
FROM_THE_TOP = 0.6  # share of the selection that is of the best tenth, above which quality alone decides
LENGTH_CHANGE = 2.0  # times that the median length grew or shrank
BETWEEN = 0.2  # share of the quality's variance between the values of a column, above which it is told
OPEN = 0.05  # gap to the bound above which it is said that better selections may exist
MOST_GROUPS = 3  # named


def findings(
    recipe: Mapping[str, Any],
    counts: Counts,
    blocks: Sequence[Mapping[str, Any]],
    breakdown: Breakdown,
    measured: Diversity | None,
    more: Sequence[Finding] = (),
    wiped: Sequence[Wiped] = (),
) -> list[Finding]:
    """Return what the quality is not and what was selected, then what was gained, lost and to doubt."""
    share = counts.selected / max(counts.documents_eligible, 1)
    said = f"{counts.selected:,} of {counts.documents_eligible:,} eligible documents are selected ({share:.1%})"
    if counts.tokens_eligible:
        estimated = f", {counts.estimated}" if counts.estimated else ""
        said += f", with {counts.tokens_selected / counts.tokens_eligible:.1%} of their tokens{estimated}"
    note = quality_note(recipe)
    first = [] if note is None else [Finding(note, QUALITY, is_worry=True)]
    first.append(Finding(f"{said}.", FUNNEL))
    if not counts.selected:
        return first
    found = [
        *(_quality(breakdown) if recipe["quality"]["scorers"] else ()),
        *_near_duplicates(measured),
        *_diversity(measured),
        *more,
        *_optimum(blocks),
        *_dropped(counts),
        *_wiped_groups(wiped),
        *_lost_groups(breakdown, measured),
        *_length(breakdown),
        *_one_score(breakdown),
        *(_of_groups(breakdown, recipe["quality"].get("by")) if recipe["quality"]["scorers"] else ()),
    ]
    headings = {one.heading for one in found}
    if LOST not in headings:
        text = "No group of 1% of the documents or more has less than half of its share of the selection."
        found.append(Finding(text, BY_GROUP, heading=LOST))
    if DOUBT not in headings and note is None:
        near = "near-duplicates are no more than a random subset's, and " if measured is not None else ""
        found.append(Finding(f"Nothing stands out: {near}quality is not all that decides.", BY_GROUP, heading=DOUBT))
    order = {heading: place for place, heading in enumerate(HEADINGS)}
    return [*first, *sorted(found, key=lambda one: order.get(one.heading, len(order)))]


def _quality(breakdown: Breakdown) -> Iterator[Finding]:
    known, kept = breakdown.numbers["quality"], breakdown.selected["quality"]
    if not len(kept) or known[0] == known[-1]:
        return
    before, after = median(known), median(kept)
    above = float(np.searchsorted(known, after) / len(known))
    is_worse = above < 0.5
    text = (
        f"Quality: the median selected document is better than {above:.0%} of the eligible ones ({after:+.2f} "
        f"standard deviations; the median of all eligible: {before:+.2f})."
    )
    if before == after:  # as with a score of few values
        all_better, better = (float((values > after).mean()) for values in (known, kept))
        is_worse = better < all_better
        text = (
            f"Quality: {better:.0%} of the selection and {all_better:.0%} of all eligible are better than "
            f"{after:+.2f} standard deviations, the median of both."
        )
    yield Finding(text, QUALITY, is_worry=is_worse, heading=LOST if is_worse else GAINED)


def _near_duplicates(measured: Diversity | None) -> Iterator[Finding]:
    if measured is None:
        return
    shares = [measured.geometry[name].near_duplicates for name in ("eligible", "random", "selected")]
    eligible, random, selected = (share or 0.0 for share in shares)
    said = (
        f"{random:.1%} of a random subset of its size, {eligible:.1%} of all eligible (cosine from {NEAR_DUPLICATE})."
    )
    if selected < random:
        yield Finding(f"Near-duplicates: {selected:.1%} of the selection; {said}", DIVERSITY, heading=GAINED)
    elif selected > random and selected >= DUPLICATES:
        remedy = "Set selection.near_duplicates: of documents that are alike only the best is then selected."
        text = f"{selected:.1%} of the selection are near-duplicates; {said} {remedy}"
        yield Finding(text, DIVERSITY, is_worry=True, heading=DOUBT)


def _diversity(measured: Diversity | None) -> Iterator[Finding]:
    if measured is None:
        return
    random, selected = (measured.geometry[name].effective_rank for name in ("random", "selected"))
    text = (
        f"Diversity: it is {'more' if selected > random else 'less'} diverse than a random subset of its size, an "
        f"effective rank of {selected:,.0f} against {random:,.0f}."
    )
    yield Finding(text, DIVERSITY, is_worry=selected < random, heading=GAINED if selected > random else LOST)


def _optimum(blocks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    gap, said = widest_gap(blocks), claim(blocks)
    if gap is not None and gap > OPEN:
        said += " Either a better selection exists, or this bound is loose."
    yield Finding(said, OPTIMUM, heading=DOUBT if gap is None or gap > OPEN else GAINED)


def _dropped(counts: Counts) -> Iterator[Finding]:
    lost = counts.documents_in - counts.documents_eligible
    if lost > DROPPED * counts.documents_in:
        reason, number = max(counts.dropped.items(), key=lambda item: item[1])
        text = (
            f"{lost / counts.documents_in:.0%} of the source never came to the selection, most of it as "
            f"{reason.replace('_', ' ')} ({number:,} documents)."
        )
        yield Finding(text, FUNNEL, is_worry=True, heading=LOST)


def _wiped_groups(wiped: Sequence[Wiped]) -> Iterator[Finding]:
    texts = [f"{said[0].upper()}{said[1:]}." for said in map(str, wiped[:MOST_GROUPS])]
    if len(wiped) > MOST_GROUPS:
        texts.append(f"{len(wiped) - MOST_GROUPS:,} more groups are wiped out by one step before the selection.")
    yield from (Finding(text, LOSSES, is_worry=True, heading=LOST) for text in texts)


def _lost_groups(breakdown: Breakdown, measured: Diversity | None) -> Iterator[Finding]:
    """Yield the groups that have less than half of what they would have at random, one sentence for each column."""
    found = [
        (GROUPS.get(name, name), BY_GROUP, _fewer(rows)) for name, rows in breakdown.groups.items() if name != "quality"
    ]
    if measured is not None:
        # Selected documents are a sample of their own, so the clusters' shares of each are compared.
        rows = [SelectedShare(one.words or "no words", one.before, one.after) for one in measured.clusters]
        found.append(("the words of a cluster", DIVERSITY, _fewer(rows)))
    for column, section, named in found:
        if named:
            more = f" and {len(named) - MOST_GROUPS:,} more" if len(named) > MOST_GROUPS else ""
            text = f"By {column}: {', '.join(named[:MOST_GROUPS])}{more}."
            yield Finding(text, section, is_worry=True, heading=LOST)


def _fewer(rows: Sequence[SelectedShare]) -> list[str]:
    """Name the groups of at least `LARGE_GROUP` that have lost more than chance can explain, the largest loss first."""
    documents = max(sum(row.documents for row in rows), 1)
    selected = max(sum(row.selected for row in rows), 1)
    found = []
    for row in rows:
        expected = row.documents * selected / documents
        missing = expected - row.selected
        is_lost = row.selected < LOST_SHARE * expected and missing > CHANCE * expected**0.5
        if is_lost and row.documents >= LARGE_GROUP * documents and len(rows) > 1:
            said = (
                f"{row.label!r} has {row.selected / expected:.0%} of what it would have at random "
                f"({row.selected / selected:.1%} of the selection, {row.documents / documents:.1%} of the eligible)"
            )
            found.append((missing, said))
    return [said for _, said in sorted(found, reverse=True)]


def _one_score(breakdown: Breakdown) -> Iterator[Finding]:
    rows = breakdown.groups["quality"]
    selected = sum(row.selected for row in rows)
    if len(rows) == 10 and rows[-1].selected > FROM_THE_TOP * selected > 0:
        text = (
            f"{rows[-1].selected / selected:.0%} of the selection is of the best tenth by quality: quality alone "
            "decides. A lower selection.lamb gives diversity more weight."
        )
        yield Finding(text, BY_GROUP, is_worry=True, heading=DOUBT)


def _of_groups(breakdown: Breakdown, by: str | None) -> Iterator[Finding]:
    """Yield which column's values the quality tells apart most, other than the one that it is standardised by."""
    columns = {name: share for name, share in breakdown.between.items() if name != by}
    column = max(columns, key=lambda name: columns[name], default=None)
    if column is not None and columns[column] > BETWEEN:
        text = (
            f"{columns[column]:.0%} of the differences in quality (of its variance) are between the values of "
            f"{column}, not among the documents of one: some values are preferred as a whole. If these are not better "
            f"as a whole, set quality.by: {column}, so that each document is compared with others of the same {column}."
        )
        yield Finding(text, BY_GROUP, is_worry=True, heading=DOUBT)


def _length(breakdown: Breakdown) -> Iterator[Finding]:
    known, kept = breakdown.numbers["n_chars"], breakdown.selected["n_chars"]
    if not len(kept):
        return
    before, after = max(median(known), 1.0), max(median(kept), 1.0)
    if max(before / after, after / before) >= LENGTH_CHANGE:
        text = (
            f"The selected texts are {'shorter' if after < before else 'longer'}: half of them have more than "
            f"{after:,.0f} characters, {before:,.0f} of all eligible."
        )
        yield Finding(text, QUALITY, is_worry=True, heading=LOST)
