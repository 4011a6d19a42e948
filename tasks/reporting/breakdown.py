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

from fineweb_mask.models.analysis.groups import between_share, decile_edges, domains, group_of
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.reporting.samples import eligible_table, evenly_spaced
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
"""Columns whose groups are tenths of the documents."""
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
    parts = [_shard(workspace, shards[index], columns, step) for index in chosen]
    table = pa.concat_tables([_schema(columns).empty_table(), *parts])
    numbers, is_kept = {name: table[name].to_numpy() for name in NUMBERS}, table["selected"].to_numpy()
    labelled = {name: _by_label(table, name) for name in columns}
    is_whole = step == 1 and len(chosen) == len(shards)
    return Breakdown(
        groups={name: _largest(one, "no url" if name == "domain" else UNKNOWN) for name, one in labelled.items()}
        | {name: _tenths(values, is_kept) for name, values in numbers.items()},
        numbers={name: np.sort(values[np.isfinite(values)]) for name, values in numbers.items()},
        selected={name: np.sort(values[np.isfinite(values) & is_kept]) for name, values in numbers.items()},
        between={name: _between(one) for name, one in labelled.items() if name != "domain"},
        counted="All eligible documents." if is_whole else f"A sample of {len(table):,} eligible documents.",
    )


def _schema(columns: Sequence[str]) -> pa.Schema:
    names = [(name, pa.float64()) for name in NUMBERS] + [(f"by {name}", pa.string()) for name in columns]
    return pa.schema([*names, ("selected", pa.bool_())])


def _shard(workspace: Workspace, shard: ShardFiles, columns: Sequence[str], step: int) -> pa.Table:
    """Return every `step`-th eligible document of a shard: its numbers, NaN if unknown, and its labels."""
    raise_if_stopped()
    read = ["n_chars", *("url" if name == "domain" else name for name in columns)]
    found = eligible_table(workspace, shard, list(dict.fromkeys(read)))
    found = found.take(np.arange(0, len(found), step))
    values = {name: pc.fill_null(found[name].cast(pa.float64()), np.nan) for name in NUMBERS}
    values |= {f"by {name}": domains(found["url"]) if name == "domain" else _labels(found[name]) for name in columns}
    return pa.table(values | {"selected": found["selected"]}, schema=_schema(columns))


def _labels(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as text, with null instead of empty text."""
    labels = column.cast(pa.string())
    return pc.if_else(pc.equal(labels, ""), pa.scalar(None, pa.string()), labels)


def _tenths(values: NDArray[np.float64], is_kept: NDArray[np.bool_]) -> list[SelectedShare]:
    """Count documents by tenths of `values` (n,), labelled with just enough decimals to tell their edges apart."""
    edges = decile_edges(values)
    whole = all(edge == int(edge) for edge in edges)
    digits = 0 if whole else next((n for n in (2, 3, 4, 5) if len({f"{e:.{n}f}" for e in edges}) == len(edges)), 6)
    bounds = enumerate(pairwise(edges), 1)
    labels = [UNKNOWN, *(f"{rank}: {low:,.{digits}f} to {high:,.{digits}f}" for rank, (low, high) in bounds)]
    groups = group_of(values, edges) + 1
    counts = (np.bincount(some, minlength=len(labels)).tolist() for some in (groups, groups[is_kept]))
    missing, *every = map(SelectedShare, labels, *counts)
    return [*every, missing] if missing.documents else every


def _by_label(table: pa.Table, name: str) -> pa.Table:
    """Return how many documents have each label, null too, how many are selected or scored, and sums of their quality.

    The largest group comes first.
    """
    quality = table["quality"].to_numpy()
    is_scored = np.isfinite(quality)
    quality = np.where(is_scored, quality, 0.0)
    columns = {
        "label": table[f"by {name}"],
        "documents": np.ones(len(quality), dtype=np.int64),
        "selected": table["selected"].cast(pa.int64()),
        "scored": is_scored.astype(np.int64),
        "quality": quality,
        "squares": quality**2,
    }
    sums = pa.table(columns).group_by("label").aggregate([(one, "sum") for one in list(columns)[1:]])
    return sums.rename_columns(list(columns)).sort_by([("documents", "descending"), ("label", "ascending")])


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
