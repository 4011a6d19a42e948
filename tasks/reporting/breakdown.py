"""Count eligible and selected documents by group: dump, domain, length, quality, language score or any column.

It makes two passes over all shards, with a few of them in memory at a time. The first takes the edges of numeric groups
from a sample; the second counts every eligible document.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
EDGE_SHARDS = 64
EDGE_VALUES = 1_000_000
"""Maximum shards and documents in the sample for the edges of numeric groups."""
LARGEST = 30
"""Groups listed by name; the others are listed as one."""
TALLIED, KEPT = 200_000, 100_000
"""Groups that a tally holds at most, and that it keeps when it forgets the smallest."""
LEAST = 200
"""Documents that a group has on average, else the column has no groups whose quality is compared."""
COUNTED_AT_ONCE = 4
"""Shards that are counted at the same time."""
NUMBERS = ("n_chars", "quality", "language_score")
DRAWN = ("n_chars", "quality")
"""Numbers that have a histogram."""
LABEL, LARGEST_FIRST = pc.field("label"), [("documents", "descending"), ("label", "ascending")]


class Distribution(NamedTuple):
    """Histograms of the eligible and of the selected documents."""

    edges: NDArray[np.float64]  # (bins + 1,)
    before: NDArray[np.int64]  # (bins,)
    after: NDArray[np.int64]  # (bins,)
    medians: tuple[float, float] | None  # of a sample of the eligible, and of those of it that are selected


class Breakdown(NamedTuple):
    """Eligible documents, and how many of them are selected, by group."""

    deciles: dict[str, list[Share]]  # by column: n_chars, quality, language_score
    missing: dict[str, Share]  # by column: documents without a number
    histograms: dict[str, Distribution]  # n_chars, quality
    groups: dict[str, list[Share]]  # by column: dump, domain, others; the largest groups, then the rest as one
    between: dict[str, float]  # by column, without domain: share of the quality's variance between its values
    quality: NDArray[np.float32]  # (n,) a sorted sample
    kept: NDArray[np.float32]  # (m,) those of it that are selected, sorted


class Tally:
    """Counts of documents by group; when there are too many for memory, it forgets the smallest and keeps their sum."""

    def __init__(self) -> None:
        self._counted = count_labels(pa.array([], pa.string()), pa.array([], pa.bool_()), np.empty(0))
        self._forgotten = np.zeros(3, dtype=np.int64)  # groups, documents, selected

    def add(self, counted: pa.Table) -> None:
        """Add documents that `count_labels` counted."""
        self._counted = _summed(pa.concat_tables([self._counted, counted]))
        if len(self._counted) > TALLIED:
            ordered = self._counted.sort_by(LARGEST_FIRST)
            self._counted, self._forgotten = ordered.slice(0, KEPT), self._forgotten + _sums(ordered.slice(KEPT))

    def largest(self, n: int, unknown: str) -> list[Share]:
        """Return the `n` largest groups, then the one without a label as `unknown`, then all others as one."""
        counted = self._counted.select(Share._fields)
        named, unnamed = (counted.filter(is_so) for is_so in (LABEL.is_valid(), LABEL.is_null()))
        named = named.sort_by(LARGEST_FIRST)
        shares = [Share(**row) for row in named.slice(0, n).to_pylist()]
        shares += [Share(**row | {"label": unknown}) for row in unnamed.to_pylist()]
        groups, documents, selected = (self._forgotten + _sums(named.slice(n))).tolist()
        return [*shares, Share(f"{groups:,} others", documents, selected)] if documents else shares

    def between(self) -> float:
        """Return the share of the quality's variance that is between the groups, one of them without a label.

        It is 0 where there are too many groups, or fewer than `LEAST` documents in one on average.
        """
        scored, quality, squares = (self._counted[name].to_numpy() for name in ("scored", "quality", "squares"))
        if self._forgotten[0] or scored.sum() < LEAST * len(scored):
            return 0.0
        return between_share(scored, quality, squares)


def count_labels(
    labels: pa.Array | pa.ChunkedArray, selected: pa.Array | pa.ChunkedArray, quality: NDArray[np.float64]
) -> pa.Table:
    """Return how many documents have each label, how many of them are selected or scored, and sums of their quality.

    Null is a label, too; `quality` is (n,), not finite of documents without a score.
    """
    is_scored = np.isfinite(quality)
    quality = np.where(is_scored, quality, 0.0)
    columns = {
        "label": labels,
        "documents": np.ones(len(labels), dtype=np.int64),
        "selected": pc.cast(selected, pa.int64()),
        "scored": is_scored.astype(np.int64),
        "quality": quality,
        "squares": quality**2,
    }
    return _summed(pa.table(columns))


def _summed(counted: pa.Table) -> pa.Table:
    """Return a table of counts with one row for each label."""
    sums = counted.group_by("label").aggregate([(name, "sum") for name in counted.column_names[1:]])
    return sums.rename_columns(counted.column_names)


def _sums(counted: pa.Table) -> NDArray[np.int64]:
    """Return the number of labels, and the sums of the documents and of the selected ones."""
    return np.array([len(counted), *(counted[name].to_numpy().sum() for name in ("documents", "selected"))])


def _count_numbers(
    values: NDArray[np.float64], selected: NDArray[np.bool_], edges: NDArray[np.float64]
) -> NDArray[np.int64]:
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


def _bins(sample: NDArray[np.float64], *, logarithmic: bool) -> NDArray[np.float64]:
    present = sample[np.isfinite(sample)]
    low, high = np.quantile(present, [0.001, 0.999]) if len(present) else (1.0, 10.0)
    if logarithmic:
        return np.geomspace(max(low, 1), max(high, 2 * max(low, 1)), BINS + 1)
    return np.linspace(low, max(high, low + 1e-6), BINS + 1)


def _medians(values: NDArray[np.float64], is_kept: NDArray[np.bool_]) -> tuple[float, float] | None:
    """Return the medians of values, (n,), and of those that are kept, each one of the values; None without any.

    >>> _medians(np.array([0.0, 0.0, 0.0, 5.0, np.nan]), np.array([False, True, False, True, True]))
    (0.0, 0.0)
    """
    known = np.isfinite(values)
    sides = [np.sort(values[some]) for some in (known, known & is_kept)]
    before, after = (float(side[(len(side) - 1) // 2]) if len(side) else np.nan for side in sides)
    return None if np.isnan(after) else (before, after)


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    return np.asarray(table[name].cast(pa.float64()).to_numpy(), dtype=np.float64)


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


def _columns_of(workspace: Workspace, shard: ShardFiles) -> list[str]:
    names: list[str] = read_schema(workspace.resolve(shard.documents)).names
    return names


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
    _check_columns((name for shard in shards for name in _columns_of(workspace, shard)), by)
    by = [name for name in by if name not in NUMBERS]  # always included
    sample = _sample(workspace, shards)
    is_kept = sample.pop("selected") == 1
    edges = {("deciles", name): decile_edges(values) for name, values in sample.items()}
    edges |= {("bins", name): _bins(sample[name], logarithmic=name == "n_chars") for name in DRAWN}
    tallies = {name: Tally() for name in (*groups, *by)}
    total = {key: np.zeros((2, max(len(one), 1)), dtype=np.int64) for key, one in edges.items()}
    for numbers, labels in _counted(workspace, shards, edges, list(tallies)):
        for key, counts in numbers.items():
            total[key] += counts
        for name, counted in labels.items():
            tallies[name].add(counted)
    unknown = {"domain": "no url"}
    return Breakdown(
        deciles={name: _shares(edges["deciles", name], total["deciles", name][:, 1:]) for name in NUMBERS},
        missing={name: Share("unknown", *total["deciles", name][:, 0].tolist()) for name in NUMBERS},
        histograms={
            name: Distribution(edges["bins", name], before[1:], after[1:], _medians(sample[name], is_kept))
            for name in DRAWN
            for before, after in [total["bins", name]]
        },
        groups={name: tally.largest(LARGEST, unknown.get(name, "unknown")) for name, tally in tallies.items()},
        between={name: tally.between() for name, tally in tallies.items() if name != "domain"},
        quality=np.sort(sample["quality"]).astype(np.float32),
        kept=np.sort(sample["quality"][is_kept]).astype(np.float32),
    )


Edges = Mapping[tuple[str, str], NDArray[np.float64]]
"""Edges of the groups of numbers, ascending: at most 11 of "deciles", none without a number; BINS + 1 of "bins"."""
Counted = tuple[dict[tuple[str, str], NDArray[np.int64]], dict[str, pa.Table]]
"""The counts of a shard: of its numbers, by their edges, and of its labels."""


def _counted(
    workspace: Workspace, shards: Sequence[ShardFiles], edges: Edges, labels: Sequence[str]
) -> Iterator[Counted]:
    """Yield the counts of every shard."""
    with ThreadPoolExecutor(COUNTED_AT_ONCE) as pool:
        for first in range(0, len(shards), COUNTED_AT_ONCE):
            some = shards[first : first + COUNTED_AT_ONCE]
            yield from pool.map(partial(_count_shard, workspace, edges, labels), some)


def _count_shard(workspace: Workspace, edges: Edges, labels: Sequence[str], shard: ShardFiles) -> Counted:
    raise_if_stopped()
    read = ["n_chars", "language_score", *("url" if name == "domain" else name for name in labels)]
    table = eligible_table(workspace, shard, list(dict.fromkeys(read)))
    selected, numbers = table["selected"], {name: _numbers(table, name) for name in NUMBERS}
    return (
        {key: _count_numbers(numbers[key[1]], selected.to_numpy(), one) for key, one in edges.items()},
        {
            name: count_labels(
                domains(table["url"]) if name == "domain" else _labels(table[name]), selected, numbers["quality"]
            )
            for name in labels
        },
    )


def _sample(workspace: Workspace, shards: Sequence[ShardFiles]) -> dict[str, NDArray[np.float64]]:
    """Return some values of each numeric column, (n,), NaN if unknown, and which of them are selected, 0 or 1."""
    step = max(1, sum(shard.documents.rows for shard in shards) // EDGE_VALUES)
    parts: dict[str, list[NDArray[np.float64]]] = {name: [np.empty(0)] for name in (*NUMBERS, "selected")}
    for index in evenly_spaced(len(shards), EDGE_SHARDS):
        raise_if_stopped()
        table = eligible_table(workspace, shards[index], ["n_chars", "language_score"])
        for name, part in parts.items():
            part.append(_numbers(table, name)[::step].copy())
    return {name: np.concatenate(part) for name, part in parts.items()}


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
