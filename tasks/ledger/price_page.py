"""Write the page on what files that may join a corpus would add to it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fineweb_mask.models.ledger.price import Estimate
from fineweb_mask.tasks.reporting.page import Card, Column, Finding, Page, Section, Side, Table, Tile

EXAMPLES, LONGEST = 6, 700
"""Clusters of new documents that are shown by one of them, and characters of it."""


class Line(NamedTuple):
    """One estimate, in words."""

    name: str
    value: str
    interval: str
    note: str


def time_text(seconds: float) -> str:
    """Return a time in seconds, minutes or hours.

    >>> time_text(42), time_text(5000), time_text(400_000)
    ('42 s', '83 min', '111 h')
    """
    size, unit = next((pair for pair in ((1, "s"), (60, "min")) if seconds < 120 * pair[0]), (3_600, "h"))
    return f"{seconds / size:,.0f} {unit}"


def lines(details: Mapping[str, Any]) -> list[Line]:
    """Return the estimates, in the order in which they are told; what was not measured is left out."""
    found, clusters = details["estimates"], len(details["clusters"])
    total = details["documents"]
    kept = Estimate(*found["kept"]).times(total)
    near = {"minhash": "by runs of words", "vectors": "by vectors, not dropped"}
    rate = "at this workspace's rates" if details["is_own_rate"] else "at the rate of the sample just now"
    percent, better = "{:.1%}".format, "{:+.1%}".format
    told: dict[str, tuple[str, Callable[[float], str], str]] = {
        "kept": ("selected of it", percent, f"about {kept.value:,.0f} of {total:,} documents"),
        "dropped": ("dropped by ingest", percent, ""),
        "equal": ("equal to one of ours", percent, ""),
        "near": ("near-duplicate of ours", percent, near[details["near_by"]]),
        "new_documents": ("unlike ours", percent, "farther from ours than 99% of ours; 1% is usual"),
        "new_clusters": ("new clusters", "{:,.0f}".format, f"of {clusters} clusters of it"),
        "gain": ("J", "{:+.4f}".format, "of a selection as large as ours alone"),
        "teaches_ours": ("predicts ours", better, "than a selection from ours alone, both of the sample's size"),
        "teaches_theirs": ("predicts it", better, "than a selection from ours alone, both of the sample's size"),
        "seconds": ("ingest, score, embed all", time_text, f"{rate}, one job at a time"),
    }
    return [
        Line(name, form(value[0]), f"{form(value[1])} to {form(value[2])}", note)
        for key, (name, form, note) in told.items()
        if (value := found.get(key)) is not None
    ]


def price_page(details: Mapping[str, Any]) -> Page:
    """Return the page of the details of a job."""
    found = lines(details)
    new = [one for one in details["clusters"] if one["new"] > 0.5][:EXAMPLES]
    reasons = ", ".join(f"{name} {count:,}" for name, count in details["reasons"].items())
    clusters = [[one["words"], one["documents"], one["new"], one["kept"]] for one in details["clusters"]]
    columns = (
        Column("cluster"),
        Column("documents", "count"),
        Column("unlike ours", "share"),
        Column("selected", "share"),
    )
    sections = [
        Section(
            "What is expected",
            (
                f"{details['sample']:,} of {details['documents']:,} documents were drawn at random, and ingested, "
                "scored and embedded by the models of this workspace. As large a share of ours was drawn, and it was "
                "selected from both together, again and again from halves. The last column but one is to hold in 19 "
                "of 20 trials when the whole is run.",
                *([f"Ingest drops of the sample: {reasons}."] if reasons else []),
            ),
            tables=[
                Table(
                    "Estimates",
                    (Column("of all documents"), Column("expected"), Column("19 of 20 times"), Column("")),
                    [list(line) for line in found],
                    wide=True,
                )
            ],
        ),
        Section(
            "Clusters",
            ("Clusters of the sample's documents that may be selected, those most unlike ours first.",),
            tables=[Table("Every cluster", columns, clusters, wide=True)] if clusters else [],
        ),
    ]
    if new:
        cards = [
            Card(one["words"], f"{one['documents']} documents of the sample", one["example"][:LONGEST]) for one in new
        ]
        sections.append(Section("New clusters", ("One document of each.",), sides=[Side("", [card]) for card in cards]))
    shown = {line.name: line for line in found}
    tiles = [
        Tile(f"{line.value}", f"{name}, {line.interval}")
        for name in ("selected of it", "near-duplicate of ours", "new clusters", "J", "ingest, score, embed all")
        if (line := shown.get(name)) is not None
    ]
    return Page(
        title="What new documents would add",
        lead=f"A sample of {details['sample']:,} documents, against {details['total']:,} of this workspace.",
        tiles=tiles,
        findings=[Finding(text, "What is expected", is_worry=True) for text in details["remarks"]],
        sections=sections,
        metrics=details,
    )
