"""Write the page on what the scores of every group of documents say."""

from collections.abc import Mapping
from typing import Any

from fineweb_mask.tasks.reporting.page import Column, Page, Section, Table, Tile, check_findings

LISTED = 200
"""Groups that are listed."""
LEAST = 30
"""Documents of a group that is judged; of fewer, no share is known."""
PAGES_OF_GROUP = 50
"""Pages of a group that are damaged, at most."""
DECIDES = "quality"
"""What documents are selected by."""
DAMAGE = {
    "lines shuffled": "its lines shuffled",
    "boilerplate": "boilerplate around it",
    "cut off": "its second half cut off",
    "words shuffled": "its words shuffled",
}
"""How a damaged copy is called in a sentence."""


INSIDE = (
    Column("group"),
    Column("documents", "count"),
    Column("mean", "number"),
    Column("deviation inside", "share"),
    Column("of all documents", "share"),
    Column("of the best tenth", "share"),
    Column("scores agree", "number"),
)
OVERALL = (
    Column("score"),
    Column("variance between groups", "share"),
    Column("AUC of the group alone", "number"),
    Column("deviation", "number"),
)
PREFERRED = (Column("group"), *(Column(kind, "share") for kind in DAMAGE))


def _tables(details: Mapping[str, Any], score: str) -> list[Table]:
    """Return what a score is inside every group, and how often it prefers a page there, if it reads the text."""
    inside, preferred = list[list[Any]](), list[list[Any]]()
    for group in details["groups"][:LISTED]:
        one, name = group["scores"][score], group["group"] or "(empty)"
        shares = [one["deviation"], group["share"], one["of_the_best"]]
        inside.append([name, group["documents"], _rounded(one["mean"]), *shares, _rounded(group["agreement"])])
        if one["prefers_page"]:
            preferred.append([name, *(one["prefers_page"][kind] for kind in DAMAGE)])
    left = len(details["groups"]) - LISTED
    more = f" {left:,} smaller ones are in metrics.json." if left > 0 else ""
    note = f"Largest first. Means are in deviations from that of all documents.{more}"
    tables = [Table(f"The score {score} inside every group", INSIDE, inside, note=note, wide=True)]
    if preferred:
        note = f"{details['pages']:,} pages, at most {PAGES_OF_GROUP} of a group; equal scores count as half."
        title = "How often a page is preferred to its damaged copy"
        tables.append(Table(title, PREFERRED, preferred, note=note, wide=True))
    return tables


EXPLAINED = (
    "A score selects well only if it orders the documents inside a group, and not the groups alone. The deviation "
    "inside a group is given as a share of that of all documents: near 0%, the order there is noise. The best tenth is "
    "what a selection by this score alone would take.",
    "A page should be preferred to a copy of it that is worse to anyone: with its lines or its words in random order, "
    "with twice the boilerplate around it, or without its second half. 50% is what a score has that does not see the "
    "difference; a score that counts words cannot see their order.",
)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def score_page(details: Mapping[str, Any]) -> Page:
    """Return the page of what `measured` found."""
    by = details["by"]
    score = details["scores"][DECIDES]
    auc = score["group_auc"]
    of_scores = [
        [name, one["between_groups"], _rounded(one["group_auc"]), one["deviation"]]
        for name, one in details["scores"].items()
    ]
    notes = f"{details['small_groups']:,} documents are in groups of fewer than {LEAST}, which are not judged."
    return Page(
        title=f"Scores inside every {by}",
        lead=f"{details['documents']:,} of {details['population']:,} documents in {len(details['groups']):,} groups of "
        f"{by}; {details['pages']:,} pages and four damaged copies of each were scored. {notes}",
        tiles=[
            Tile(f"{score['between_groups']:.0%}", f"of the quality's variance is between values of {by}"),
            Tile("–" if auc is None else f"{auc:.2f}", "AUC with which the group alone tells the best tenth"),  # noqa: RUF001
            Tile(str(len(details["warnings"])), "warnings"),
        ],
        findings=check_findings(details, "Scores"),
        sections=[
            Section("Scores", EXPLAINED, tables=[Table("Every score over all groups", OVERALL, of_scores, wide=True)]),
            *(Section(f"{name} by {by}", tables=_tables(details, name)) for name in details["scores"]),
        ],
        metrics=details,
    )
