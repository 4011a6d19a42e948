"""Count eligible and selected documents by group: dump, domain, tenths by length and quality, or any column.

Of a corpus of more than a million documents, a sample is counted.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.analysis.groups import between_share, decile_edges, domains
from fineweb_mask.tasks.reporting.samples import eligible_documents, evenly_spaced, rows_at
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_SHARDS = 64
MOST_DOCUMENTS = 1_000_000
"""Shards and documents of the sample, at most."""
LARGEST = 15
"""Groups listed by name; the others are listed as one."""
LEAST = 200
"""Documents that a group has on average, else the column has no groups whose quality is compared."""
NUMBERS = ("n_chars", "quality")
"""Columns of documents and of scores whose groups are tenths of the documents."""
UNKNOWN = "unknown"


class SelectedShare(NamedTuple):
    """How many of a group's documents are selected."""

    label: str
    documents: int
    selected: int


class Breakdown(NamedTuple):
    """Eligible documents, and how many of them are selected, by group."""

    groups: dict[str, list[SelectedShare]]  # by column: the largest groups and the rest as one, or tenths, lowest first
    numbers: dict[str, NDArray[np.float64]]  # n_chars, quality: (n,) sorted, of the eligible documents
    selected: dict[str, NDArray[np.float64]]  # (m,) sorted, of those that are selected
    between: dict[str, float]  # by column, without domain: share of the quality's variance between its values
    counted: str  # of what all numbers are


def break_down(workspace: Workspace, shards: Sequence[ShardFiles], by: Sequence[str] = ()) -> Breakdown:
    """Count the eligible and the selected documents of every group, also of further columns of the documents."""
    columns = [name for name in dict.fromkeys(("dump", "domain", *by)) if name not in NUMBERS]
    chosen = evenly_spaced(len(shards), MOST_SHARDS)
    step = max(1, -(-sum(shards[index].documents.rows for index in chosen) // MOST_DOCUMENTS))
    places, is_kept = eligible_documents(workspace, shards, chosen, step)
    read = {"n_chars", *("url" if name == "domain" else name for name in columns)}
    documents = rows_at(workspace, shards, places, "documents", [*read])
    scores = rows_at(workspace, shards, places, "scores", ["quality"])
    values = {
        name: table[name].to_numpy().astype(np.float64)
        for name, table in zip(NUMBERS, (documents, scores), strict=True)
    }
    labelled = {name: _by_label(_labels(documents, name), values["quality"], is_kept) for name in columns}
    numbers, selected = (
        {name: np.sort(all_of[counted & np.isfinite(all_of)]) for name, all_of in values.items()}
        for counted in (np.True_, is_kept)
    )
    totals = SelectedShare(UNKNOWN, len(places), int(is_kept.sum()))
    is_whole = step == 1 and len(chosen) == len(shards)
    return Breakdown(
        groups={name: _largest(one, "no url" if name == "domain" else UNKNOWN) for name, one in labelled.items()}
        | {name: _tenths(numbers[name], selected[name], totals) for name in NUMBERS},
        numbers=numbers,
        selected=selected,
        between={name: _between(one) for name, one in labelled.items() if name != "domain"},
        counted="All eligible documents." if is_whole else f"A sample of {len(places):,} eligible documents.",
    )


def _labels(documents: pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    """Return a column as text, with null instead of empty text; of a column that is not there, null."""
    if name == "domain":
        return domains(documents["url"])
    if name not in documents.column_names:
        return pa.nulls(len(documents), pa.string())
    labels = documents[name].cast(pa.string())
    return pc.if_else(pc.equal(labels, ""), pa.scalar(None, pa.string()), labels)


def _tenths(known: NDArray[np.float64], kept: NDArray[np.float64], of_all: SelectedShare) -> list[SelectedShare]:
    """Count documents by tenths of their numbers, labelled with just enough decimals to tell their edges apart."""
    edges = decile_edges(known)
    whole = all(edge == int(edge) for edge in edges)
    digits = 0 if whole else next((n for n in (2, 3, 4, 5) if len({f"{e:.{n}f}" for e in edges}) == len(edges)), 6)
    bounds = enumerate(pairwise(edges), 1)
    labels = [f"{rank}: {low:,.{digits}f} to {high:,.{digits}f}" for rank, (low, high) in bounds]
    counts = (np.histogram(some, edges)[0].tolist() if labels else [] for some in (known, kept))
    missing = of_all._replace(documents=of_all.documents - len(known), selected=of_all.selected - len(kept))
    return [*map(SelectedShare, labels, *counts), *([missing] if missing.documents else [])]


def _by_label(labels: pa.Array | pa.ChunkedArray, quality: NDArray[np.float64], is_kept: NDArray[np.bool_]) -> pa.Table:
    """Return how many documents have each label, null too, how many are selected or scored, and sums of their quality.

    The largest group comes first.
    """
    is_scored = np.isfinite(quality)
    quality = np.where(is_scored, quality, 0.0)
    columns = {
        "documents": np.ones(len(quality), dtype=np.int64),
        "selected": is_kept.astype(np.int64),
        "scored": is_scored.astype(np.int64),
        "quality": quality,
        "squares": quality**2,
    }
    table = pa.table({"label": labels, **columns})
    sums = table.group_by("label").aggregate([(name, "sum") for name in columns])
    return sums.rename_columns(table.column_names).sort_by([("documents", "descending"), ("label", "ascending")])


def _largest(counted: pa.Table, unknown: str) -> list[SelectedShare]:
    """Return the largest groups, then the one without a label as `unknown`, then all others as one."""
    shares = [SelectedShare(**row) for row in counted.select(SelectedShare._fields).to_pylist()]
    named, unnamed = ([one for one in shares if (one.label is None) == is_none] for is_none in (False, True))
    rest = named[LARGEST:]
    others = SelectedShare(
        f"{len(rest):,} others", sum(one.documents for one in rest), sum(one.selected for one in rest)
    )
    return [*named[:LARGEST], *(one._replace(label=unknown) for one in unnamed), *([others] if rest else [])]


def _between(counted: pa.Table) -> float:
    """Return the share of the quality's variance that is between groups; 0 with too few documents in one on average."""
    scored, quality, squares = (counted[name].to_numpy() for name in ("scored", "quality", "squares"))
    return 0.0 if scored.sum() < LEAST * len(scored) else between_share(scored, quality, squares)
