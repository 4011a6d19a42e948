"""Measure the precision and recall of every step that drops documents, on a sample of a corpus with planted cases.

Of the documents that a step dropped, pairs with what was kept for them are drawn, and compared exactly. Of the planted
cases it is known what should become of them. Losses are counted by group from the source on, so that a group of which
nothing is left is seen.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fineweb_mask.models.audit.agreement import Interval, wilson
from fineweb_mask.models.audit.pairs import contained, marked, similarity
from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.tasks.audit.fates import (
    BENCHMARKS,
    EXACT,
    FILTERS,
    KNOWN_ELSEWHERE,
    NEAR,
    STEPS,
    URLS,
    Fates,
    read_fates,
)
from fineweb_mask.tasks.audit.sample import CASES, EDITS, SAMPLED, WORKSPACE, benchmark_items
from fineweb_mask.tasks.reporting.page import (
    Card,
    Column,
    Page,
    PageJob,
    Section,
    Side,
    Table,
    Tile,
    check_findings,
    some,
)
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

PAIRS = 400
"""Pairs of a step that are drawn and compared."""
SHOWN, LONGEST = 12, 1_500
"""Pairs of a step on the page, half of them the least alike, half as many if all are; and characters of a text."""
LEAST_GROUP, LEAST_KEPT = 20, 0.05
"""Documents of a group that is judged, and the share of it that a step keeps at least, else it is wiped out."""
LISTED = 200
LEAST_PRECISION, LEAST_RECALL, MOST_CLEAN = 0.95, 0.9, 0.01
"""Shares below which a step surely drops too much, or finds too little; and of clean pages that a step may drop."""
LEAKED = 0.8
"""Share of a benchmark item's words, in runs, that a text which leaks it holds."""
REMEDIES = {
    FILTERS: "leave out or loosen the filter that drops them",
    BENCHMARKS: "look at the pairs: a common phrase among the items convicts clean documents",
    KNOWN_ELSEWHERE: "see whether these documents are in the corpora of ingest.against",
    EXACT: "look at the pairs: such a group repeats one text, or boilerplate alone",
    NEAR: "raise ingest.near_threshold, so that only texts that are more alike are near-duplicates",
    URLS: "set ingest.url_dedup to false",
}
"""What to do about a step that drops what it should not."""
MORE_FOUND = "lower ingest.near_threshold: of the pairs just at it, half are looked at"


class AuditJob(PageJob):
    """Judge what ingest and deduplication made of a drawn source, in a workspace of its own."""

    stage: ClassVar[Stage] = Stage("audit", version=1, folders=("audit",))
    drawn: str  # folder of the drawn source, its cases and its workspace
    shards: list[ShardFiles]  # of that workspace
    settings: IngestSettings
    by: str

    def depends_on(self) -> Dependencies:
        """Return the settings of ingest, the column, and the fingerprints of what was dropped."""
        files = [(shard.documents, shard.duplicates) for shard in self.shards]
        return Dependencies(settings=[self.settings.model_dump(mode="json"), self.by], inputs=files)


@stage_task
def audit(job: AuditJob) -> None:
    """Compare drawn pairs, count what became of planted cases and of groups, and write the page."""
    folder = Path(job.drawn)
    fates = read_fates(Workspace(folder / WORKSPACE), job.shards, folder / CASES)
    pairs = _drawn_pairs(job.settings, fates)
    details = measured(job.settings, fates, pairs, job.by)
    job.write(_page(details, pairs), {"rows": details["documents"], **details})


def asked_of(settings: IngestSettings) -> float:
    """Return the Jaccard similarity from which texts are to be near-duplicates."""
    return settings.near_threshold


def is_active(settings: IngestSettings, step: str) -> bool:
    """Return whether the settings have a step drop anything."""
    return {
        FILTERS: True,
        BENCHMARKS: bool(settings.decontaminate),
        KNOWN_ELSEWHERE: bool(settings.against),
        EXACT: settings.exact_dedup != "off",
        NEAR: settings.near_dedup != "off",
        URLS: settings.url_dedup,
    }[step]


class Pair(NamedTuple):
    """A dropped text and what was kept for it, and how alike they are."""

    dropped: str
    kept: str
    name: str  # of what is kept
    of: str  # of what is dropped
    similarity: float
    is_alike: bool


Pairs = Mapping[str, Sequence[Pair]]
"""Drawn pairs, by step, the least alike first."""


def _drawn_pairs(settings: IngestSettings, fates: Fates) -> Pairs:
    """Draw pairs of every step among the documents that were not planted, and compare them."""
    dice = random.Random(0)  # noqa: S311 - the same pairs every time
    items = dict(benchmark_items(settings))
    asked, words = asked_of(settings), Sketch().words
    compare: dict[str, Callable[[str, str], tuple[float, bool]]] = {
        BENCHMARKS: lambda text, item: ((share := contained(item, text)), share >= LEAKED),
        EXACT: lambda text, twin: (similarity(text, twin, words), text.lower().split() == twin.lower().split()),
        NEAR: lambda text, twin: ((share := similarity(text, twin, words)), share >= asked),
    }
    found: dict[str, list[Pair]] = {}
    for step, compared in track("steps", list(compare.items())):
        dropped = [place for place in fates.sampled if fates.steps[place] == step and place in fates.twins]
        for place in dice.sample(dropped, min(len(dropped), PAIRS)):
            twin = fates.twins[place]
            text = fates.texts[place]
            kept = items.get(twin.rpartition(", score ")[0]) if isinstance(twin, str) else fates.texts[twin]
            if text is not None and kept is not None:
                name = twin if isinstance(twin, str) else _called(fates, twin)
                found.setdefault(step, []).append(Pair(text, kept, name, _called(fates, place), *compared(text, kept)))
    return {step: sorted(pairs, key=lambda pair: pair.similarity) for step, pairs in found.items()}


def _called(fates: Fates, place: int) -> str:
    """Return the group of a row, or as what it was planted."""
    return (fates.groups[place] or "(empty)") if fates.kinds[place] == SAMPLED else f"planted: {fates.kinds[place]}"


def measured(settings: IngestSettings, fates: Fates, pairs: Pairs, by: str) -> dict[str, Any]:
    """Return what every step dropped, what to worry about, and what to do, as JSON values."""
    sampled, ranks = fates.sampled, fates.ranks
    steps = list[dict[str, Any]]()
    for rank, step in enumerate(STEPS):
        if not is_active(settings, step):
            continue
        came = [place for place in sampled if ranks[place] >= rank]
        gone = [place for place in came if ranks[place] == rank]
        judged = pairs.get(step, ())
        steps.append(
            {
                "step": step,
                "came": len(came),
                "dropped": len(gone),
                "reasons": dict(Counter(fates.reasons[place] for place in gone).most_common()),
                "alike": wilson(sum(pair.is_alike for pair in judged), len(judged)),
                "planted": _planted(fates, rank),
                "alike_found": _alike_found(settings, fates) if step == NEAR else None,
                "groups": _groups(fates, came, step),
            }
        )
    groups = [
        {"group": name, "documents": of.total(), "kept": of["kept"] / of.total(), **{step: of[step] for step in STEPS}}
        for name, of in _by_step((fates.groups[place], fates.steps[place]) for place in sampled).items()
    ]
    planted = [(kind, step) for kind, step in zip(fates.kinds, fates.steps, strict=True) if kind != SAMPLED]
    found = [(warning, advice) for step in steps for warning, advice in _judged(step)]
    return {
        "by": by,
        "documents": len(sampled),
        "asked": {"similarity": asked_of(settings), "words": Sketch().words},
        "steps": steps,
        "groups": sorted(groups, key=lambda one: (one["documents"] < LEAST_GROUP, one["kept"], one["group"])),
        "cases": [
            {"kind": kind, "n": of.total(), "kept": of["kept"], **{step: of[step] for step in STEPS}}
            for kind, of in sorted(_by_step(planted).items())
        ],
        "warnings": [text for text, _ in found],
        "advice": list(dict.fromkeys(text for _, text in found)) or ["nothing needs to be changed"],
    }


def _by_step(rows: Iterable[tuple[str, str | None]]) -> dict[str, Counter[str]]:
    """Count rows by what they are called, and by the step that dropped them or as kept."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, step in rows:
        counts[name][step or "kept"] += 1
    return counts


def _planted(fates: Fates, rank: int) -> dict[str, Interval | None]:
    """Return which share of the planted cases of every kind a step dropped, of those that came to it."""
    found: dict[str, list[bool]] = defaultdict(list)
    for place, kind in enumerate(fates.kinds):
        if kind != SAMPLED and (both := _came(fates, place, rank)):
            found[kind].append(any(fates.steps[one] == STEPS[rank] for one in both))
    return {kind: wilson(sum(hits), len(hits)) for kind, hits in found.items()}


def _came(fates: Fates, place: int, rank: int) -> list[int]:
    """Return the place of a case that came to a step, and of its original; of these, one dropped is enough.

    Nothing is returned if one was gone before, or the original is dropped for another than its copy.
    """
    original = fates.originals[place]
    both = [place] if original is None else [place, original]
    if any(fates.steps[one] in STEPS[:rank] for one in both):
        return []
    is_of_another = original is not None and fates.steps[original] == STEPS[rank] and fates.twins.get(original) != place
    return [] if is_of_another else both


def _alike_found(settings: IngestSettings, fates: Fates) -> Interval | None:
    """Return which share of the edited copies that are as alike as asked were found, of those that came so far."""
    edits = [place for place, kind in enumerate(fates.kinds) if kind in EDITS]
    came = [both for place in edits if (both := _came(fates, place, STEPS.index(NEAR)))]
    asked, words = asked_of(settings), Sketch().words
    hits = [
        any(fates.steps[one] == NEAR for one in both)
        for both in came
        if similarity(fates.texts[both[0]] or "", fates.texts[both[1]] or "", words) >= asked
    ]
    return wilson(sum(hits), len(hits))


def _groups(fates: Fates, came: Sequence[int], step: str) -> list[dict[str, Any]]:
    """Return how much a step keeps of every group that is large enough, the least first, and why others are gone."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)  # by group and reason, which is empty for what is kept
    for place in came:
        counts[fates.groups[place]][(fates.reasons[place] or step) if fates.steps[place] == step else ""] += 1
    found = [
        {
            "group": name,
            "came": of.total(),
            "kept": of[""] / of.total(),
            "reason": next((reason for reason, _ in of.most_common() if reason), ""),
        }
        for name, of in counts.items()
        if of.total() >= LEAST_GROUP
    ]
    return sorted(found, key=lambda one: (one["kept"], one["group"]))


def _judged(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what to worry about in a step, each with the setting to change."""
    step, planted, alike = found["step"], found["planted"], found["alike"]
    remedy = REMEDIES[step]
    if alike is not None and alike.high < LEAST_PRECISION:
        said = (
            "dropped documents that were drawn hold an item"
            if step == BENCHMARKS
            else "drawn pairs are as alike as asked"
        )
        yield f"{step}: {shown(alike)} of the {said}", remedy
    if (found_alike := found["alike_found"]) is not None and found_alike.high < LEAST_RECALL:
        yield (
            f"{step}: {shown(found_alike)} of the planted copies that are as alike as asked are found",
            MORE_FOUND,
        )
    if step == NEAR and (pages := planted.get("template")) is not None and pages.low > 1 - LEAST_PRECISION:
        yield f"{step}: {shown(pages)} of the pages of a template with other content are dropped", remedy
    for kind, needed in ((BENCHMARK, BENCHMARKS), (SHORT, BENCHMARKS), ("copy", EXACT)):
        if step == needed and (hit := planted.get(kind)) is not None and hit.high < LEAST_PRECISION:
            yield f"{step}: {shown(hit)} of the planted cases of the kind {kind} are found", UNFOUND[kind]
    if (clean := planted.get("clean")) is not None and clean.low > MOST_CLEAN:
        yield f"{step}: {shown(clean)} of the clean pages that were planted are dropped", CLEAN[step == FILTERS]
    if wiped := [one for one in found["groups"] if one["kept"] < LEAST_KEPT]:
        names = some([f"{one['group'] or '(empty)'} {one['kept']:.0%} ({one['reason']})" for one in wiped])
        yield f"{step}: {len(wiped)} groups keep less than {LEAST_KEPT:.0%}: {names}", remedy


BENCHMARK, SHORT = "benchmark", "short benchmark"
UNFOUND = {
    BENCHMARK: "lower ingest.decontaminate_threshold; phrases of many documents of the source are not looked for",
    SHORT: "items of few and common words are not looked for: give them with their answers or context",
    "copy": "set ingest.exact_dedup: corpus",
}
"""What to do where planted cases are not found."""
CLEAN = {
    True: "see the reasons in the table of steps, and loosen the filters that drop clean pages",
    False: "look at the pairs of this step",
}


def shown(interval: Interval) -> str:
    """Return a share with its interval.

    >>> shown(Interval(0.71, 0.64, 0.77, 200))
    '71% [64, 77]'
    """
    return f"{interval.share:.0%} [{interval.low * 100:.0f}, {interval.high * 100:.0f}]"


def step_row(step: Mapping[str, Any]) -> list[str]:
    """Return what is said of a step in a line: dropped, alike, planted cases, the groups that keep least."""
    alike = "" if step["alike"] is None else shown(Interval(*step["alike"]))
    shares = ((kind, step["planted"].get(kind)) for kind in TOLD[step["step"]])
    planted = [f"{kind} {Interval(*of).share:.0%}" for kind, of in shares if of]
    least = [
        f"{one['group'] or '(empty)'} {one['kept']:.0%}{' !' if one['kept'] < LEAST_KEPT else ''}"
        for one in step["groups"][:2]
        if one["kept"] < 1
    ]
    return [step["step"], f"{step['dropped'] / max(1, step['came']):.2%}", alike, ", ".join(planted), ", ".join(least)]


TOLD: dict[str, tuple[str, ...]] = {
    FILTERS: ("clean",),
    BENCHMARKS: (BENCHMARK, SHORT, "clean"),
    KNOWN_ELSEWHERE: ("clean",),
    EXACT: ("copy", "clean"),
    NEAR: (*EDITS, "template", "clean"),
    URLS: (),
}
"""The kinds of planted cases that a step is judged by."""
STEP_HEADER = ("dropped", "drawn pairs alike", "planted, dropped", "groups that keep least")


def _page(details: Mapping[str, Any], pairs: Pairs) -> Page:
    steps = details["steps"]
    names = [step["step"] for step in steps]
    rows = [[*step_row(step), some([f"{name} {n:,}" for name, n in step["reasons"].items()])] for step in steps]
    counts = [Column("documents", "count"), Column("kept", "share"), *(Column(name, "count") for name in names)]
    groups = [
        [one["group"] or "(empty)", one["documents"], one["kept"], *(one[name] for name in names)]
        for one in details["groups"][:LISTED]
    ]
    cases = [
        [one["kind"], one["n"], one["kept"] / one["n"], *(one[name] for name in names)] for one in details["cases"]
    ]
    marks = "Shares are of what comes to the step; ! marks a group that is wiped out."
    more = f"The {LISTED} that keep least of {len(details['groups']):,}." if len(details["groups"]) > LISTED else ""
    of_steps = [Column("step"), *map(Column, STEP_HEADER), Column("reasons")]
    asked = details["asked"]
    dropped = sum(step["dropped"] for step in steps)
    alike = [Tile(shown(one["alike"]), f"of the pairs of {one['step']} are alike") for one in steps if one["alike"]]
    return Page(
        title="What every step drops, and whether it should",
        lead=f"{details['documents']:,} documents were drawn from the source, "
        f"{sum(one['n'] for one in details['cases']):,} cases were planted among them, and the recipe's own ingest "
        "and deduplication were run on both. A sample has "
        "fewer copies of a document than its corpus: what is dropped of the corpus is more.",
        tiles=[
            Tile(f"{dropped / max(1, details['documents']):.1%}", "of the drawn documents are dropped"),
            *alike,
            Tile(str(len(details["warnings"])), "warnings"),
        ],
        findings=check_findings(details, "Steps"),
        sections=[
            Section(
                "Steps",
                (
                    "Of the documents that a step dropped, pairs with what was kept for them are drawn and compared: "
                    f"equal texts, apart from case and white space; at least {asked['similarity']:.2f} of the runs of "
                    f"{asked['words']} words of both together; or at least {LEAKED:.0%} of a benchmark item's words, "
                    "in runs. Intervals are of 95%.",
                ),
                tables=[Table("Every step", of_steps, rows, note=marks, wide=True)],
            ),
            Section(
                "Planted cases",
                (
                    "Copies, and those with a share of their words replaced, are of drawn documents. Pages of a "
                    "template share 0.56 of their runs of words, and say different things. Clean pages are invented "
                    "prose: any "
                    "that is dropped is a mistake. Benchmark items stand in the middle of clean pages.",
                ),
                tables=[Table("What became of them", [Column("kind"), *counts], cases, wide=True)],
            ),
            Section(
                f"Groups by {details['by']}",
                tables=[Table("From the source on", [Column("group"), *counts], groups, note=more, wide=True)],
            ),
            *(_side_by_side(step, drawn) for step, drawn in pairs.items()),
        ],
        metrics=details,
    )


def _side_by_side(step: str, pairs: Sequence[Pair]) -> Section:
    """Return a section of the least alike of the drawn pairs, and of others, with their differences marked."""
    half = SHOWN // (2 if any(not pair.is_alike for pair in pairs) else 4)
    others = pairs[half:]
    chosen = [*pairs[:half], *others[:: max(1, -(-len(others) // half))]]
    sides = list[Side]()
    for pair in chosen:
        texts = marked(_around(pair.dropped, pair.kept) if step == BENCHMARKS else pair.dropped, pair.kept)
        both = zip(("dropped", "item" if step == BENCHMARKS else "kept"), (pair.of, pair.name), texts, strict=True)
        said = f"similarity {pair.similarity:.2f}{'' if pair.is_alike else ': not as alike as asked'}"
        sides += [Side("", [Card(f"{what}, {where}", said, _cut(pieces))]) for what, where, pieces in both]
    text = f"Of {len(pairs):,} pairs that were drawn, the {min(half, len(pairs))} least alike, and then others."
    return Section(f"Pairs: {step}", (text,), sides=sides)


def _around(text: str, item: str) -> str:
    """Return a text from a little before the beginning of an item on, if it holds that."""
    return text[max(0, text.lower().find(item.strip().lower()[:30]) - 200) :]


def _cut(pieces: Sequence[str]) -> list[str]:
    """Return pieces up to the length of a card."""
    found, room = list[str](), LONGEST
    for piece in pieces:
        found.append(piece[:room] + ("…" if len(piece) > room else ""))
        room -= len(piece)
        if room <= 0:
            break
    return found
