"""Count eligible and selected documents by group: dump, domain, length, quality, language score or any column.

Of a corpus of more than a million documents, a sample is counted.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.analysis.groups import between_share, decile_edges, domains, group_of
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.names import find
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.samples import eligible_table, evenly_spaced
from fineweb_mask.tasks.storage.parquet import read_schema
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

BINS = 40
MOST_SHARDS = 64
MOST_DOCUMENTS = 1_000_000
"""Shards and documents of the sample, at most."""
LARGEST = 30
"""Groups listed by name; the others are listed as one."""
LEAST = 200
"""Documents that a group has on average, else the column has no groups whose quality is compared."""
NUMBERS = ("n_chars", "quality", "language_score")
DRAWN = ("n_chars", "quality")
"""Numbers that have a histogram."""


class Distribution(NamedTuple):
    """Histograms of the eligible and of the selected documents."""

    edges: NDArray[np.float64]  # (bins + 1,)
    before: NDArray[np.int64]  # (bins,)
    after: NDArray[np.int64]  # (bins,)
    medians: tuple[float, float] | None  # of the eligible, and of those that are selected


class Breakdown(NamedTuple):
    """Eligible documents, and how many of them are selected, by group."""

    deciles: dict[str, list[Share]]  # by column: n_chars, quality, language_score
    missing: dict[str, Share]  # by column: documents without a number
    histograms: dict[str, Distribution]  # n_chars, quality
    groups: dict[str, list[Share]]  # by column: dump, domain, others; the largest groups, then the rest as one
    between: dict[str, float]  # by column, without domain: share of the quality's variance between its values
    quality: NDArray[np.float32]  # (n,) sorted
    kept: NDArray[np.float32]  # (m,) those of it that are selected, sorted
    counted: str = "All eligible documents."  # or of what all numbers are


def check_columns(workspace: Workspace, by: Sequence[str]) -> None:
    """Check that some documents of a workspace have the columns `by`; nothing is checked at a URL.

    Raises
    ------
    SettingsError
        If no file has one of the columns, or it is the text.
    """
    if workspace.url is None:
        paths = (workspace.root / "documents").rglob("*.parquet")
        _check_columns((name for path in paths for name in read_schema(path).names), by)


def _check_columns(present: Iterable[str], by: Sequence[str]) -> None:
    known = set(present) if by else set()
    if "text" in by:
        raise SettingsError(f"report.by: {TEXT_IS_NO_GROUP}")
    if unknown := {name for name in by if find(name, known) is None}:
        raise SettingsError(
            f"report.by: no document has a column {min(unknown)!r}, they have {', '.join(sorted(known))}"
        )


def break_down(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    by: Sequence[str] = (),
    *,
    groups: Sequence[str] = ("dump", "domain"),
) -> Breakdown:
    """Count the eligible and the selected documents of every group.

    The `groups` are dump, domain or both; `by` names further columns of the documents.

    Raises
    ------
    SettingsError
        If no shard has a column of `by`, or its values cannot be converted to text.
    """
    present = (read_schema(workspace.resolve(shard.documents)).names for shard in shards) if by else ()
    _check_columns((name for names in present for name in names), by)
    columns = list(
        dict.fromkeys([*groups, *(name for name in by if name not in NUMBERS)])
    )  # numbers are always included
    chosen = evenly_spaced(len(shards), MOST_SHARDS)
    step = max(1, -(-sum(shards[index].documents.rows for index in chosen) // MOST_DOCUMENTS))
    parts = [_shard(workspace, shards[index], columns, step) for index in chosen]
    table = pa.concat_tables([_shard_schema(columns).empty_table(), *parts])
    numbers = {name: table[name].to_numpy() for name in NUMBERS}
    quality, is_kept = numbers["quality"], table["selected"].to_numpy()
    is_whole = step == 1 and len(chosen) == len(shards)
    counted = {name: _count(values, is_kept, decile_edges(values)) for name, values in numbers.items()}
    labels = {name: _by_label(table, name, quality) for name in columns}
    return Breakdown(
        deciles={name: _shares(decile_edges(numbers[name]), counts[:, 1:]) for name, counts in counted.items()},
        missing={name: Share("unknown", *counts[:, 0].tolist()) for name, counts in counted.items()},
        histograms={name: _distribution(numbers[name], is_kept, logarithmic=name == "n_chars") for name in DRAWN},
        groups={name: _largest(one, "no url" if name == "domain" else "unknown") for name, one in labels.items()},
        between={name: _between(one) for name, one in labels.items() if name != "domain"},
        quality=np.sort(quality).astype(np.float32),
        kept=np.sort(quality[is_kept]).astype(np.float32),
        **({} if is_whole else {"counted": f"A sample of {len(table):,} eligible documents."}),
    )


def _shard_schema(columns: Sequence[str]) -> pa.Schema:
    names = [(name, pa.float64()) for name in NUMBERS] + [(f"by {name}", pa.string()) for name in columns]
    return pa.schema([*names, ("selected", pa.bool_())])


def _shard(workspace: Workspace, shard: ShardFiles, columns: Sequence[str], step: int) -> pa.Table:
    """Return every `step`-th eligible document of a shard: its numbers, NaN if unknown, and its labels."""
    raise_if_stopped()
    read = ["n_chars", "language_score", *("url" if name == "domain" else name for name in columns)]
    found = eligible_table(workspace, shard, list(dict.fromkeys(read)))
    found = found.take(np.arange(0, len(found), step))
    values = {name: pc.fill_null(found[name].cast(pa.float64()), np.nan) for name in NUMBERS}
    values |= {f"by {name}": domains(found["url"]) if name == "domain" else _labels(found[name]) for name in columns}
    return pa.table(values | {"selected": found["selected"]}, schema=_shard_schema(columns))


def _count(values: NDArray[np.float64], selected: NDArray[np.bool_], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count documents by the groups of `values` (n,), of which `selected` (n,) are selected.

    Returns (2, 1 + groups), all and the selected: first those without a number, then those of each group.
    """
    groups = group_of(values, edges) + 1
    return np.stack([np.bincount(some, minlength=max(len(edges), 1)) for some in (groups, groups[selected])])


def _shares(edges: NDArray[np.float64], counts: NDArray[np.int64]) -> list[Share]:
    """Return the deciles, lowest first, labelled with just enough decimals to distinguish their edges."""
    whole = all(edge == int(edge) for edge in edges)
    digits = 0 if whole else next((n for n in (2, 3, 4, 5) if len({f"{e:.{n}f}" for e in edges}) == len(edges)), 6)
    counted = zip(*counts.tolist(), edges, edges[1:], strict=False)
    return [
        Share(f"{rank}: {low:,.{digits}f} to {high:,.{digits}f}", before, after)
        for rank, (before, after, low, high) in enumerate(counted, 1)
    ]


def _distribution(values: NDArray[np.float64], selected: NDArray[np.bool_], *, logarithmic: bool) -> Distribution:
    known = np.isfinite(values)
    low, high = np.quantile(values[known], [0.001, 0.999]) if known.any() else (1.0, 10.0)
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    if logarithmic:
        edges = np.geomspace(max(low, 1), max(high, 2 * max(low, 1)), BINS + 1)
    before, after = _count(values, selected, edges)
    sides = [np.sort(values[some]) for some in (known, known & selected)]
    medians = [float(side[(len(side) - 1) // 2]) for side in sides if len(side)]
    return Distribution(edges, before[1:], after[1:], (medians[0], medians[1]) if len(medians) > 1 else None)


def _by_label(table: pa.Table, name: str, quality: NDArray[np.float64]) -> pa.Table:
    """Return how many documents have each label, null too, how many are selected or scored, and sums of their quality.

    The largest group comes first.
    """
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


def _largest(counted: pa.Table, unknown: str) -> list[Share]:
    """Return the largest groups, then the one without a label as `unknown`, then all others as one."""
    shares = [Share(**row) for row in counted.select(Share._fields).to_pylist()]
    named, unnamed = ([one for one in shares if (one.label is None) == is_none] for is_none in (False, True))
    rest = named[LARGEST:]
    others = Share(f"{len(rest):,} others", sum(one.documents for one in rest), sum(one.selected for one in rest))
    return [*named[:LARGEST], *(one._replace(label=unknown) for one in unnamed), *([others] if rest else [])]


def _between(counted: pa.Table) -> float:
    """Return the share of the quality's variance that is between groups; 0 with too few documents in one on average."""
    scored, quality, squares = (counted[name].to_numpy() for name in ("scored", "quality", "squares"))
    return 0.0 if scored.sum() < LEAST * len(scored) else between_share(scored, quality, squares)


def _labels(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as text, with null instead of empty text.

    Raises
    ------
    SettingsError
        If its type cannot be converted to text, such as a list.
    """
    try:
        labels = column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SettingsError(
            f"report.by: a column of type {column.type} cannot be broken down by: name one of text, numbers or dates"
        ) from error
    return pc.if_else(pc.equal(labels, ""), pa.scalar(None, pa.string()), labels)


def as_metrics(shares: Iterable[Share]) -> list[dict[str, Any]]:
    """Return groups as JSON."""
    return [share._asdict() for share in shares]
