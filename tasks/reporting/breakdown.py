"""Count eligible and selected documents by group: dump, domain, length, quality, language score or any column.

It makes two passes over all shards, with a few of them in memory at a time. The first takes the edges of numeric groups
from a sample; the second counts every eligible document.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.analysis.groups import counts_of, decile_edges, domains, group_of
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.samples import eligible_table, eligible_tables
from fineweb_mask.tasks.storage.parquet import read_schema
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

BINS = 40
EDGE_SHARDS = 64
EDGE_VALUES = 1_000_000
"""Maximum shards and documents in the sample for the edges of numeric groups."""
LARGEST = 30
"""Groups listed by name; the others are listed as one."""
TALLIED, KEPT = 200_000, 100_000
"""Groups that a tally holds at most, and that it keeps when it forgets the smallest."""
LABELS_AT_ONCE = 10_000
"""Counted labels that are Python objects at the same time."""
COUNTED_AT_ONCE = 4
"""Shards that are counted at the same time."""
NUMBERS = ("n_chars", "quality", "language_score")


class Distribution(NamedTuple):
    """Histograms of the eligible and of the selected documents."""

    edges: NDArray[np.float64]  # (bins + 1,)
    before: NDArray[np.int64]  # (bins,)
    after: NDArray[np.int64]  # (bins,)


class Breakdown(NamedTuple):
    """Eligible documents, and how many of them are selected, by group."""

    deciles: dict[str, list[Share]]  # by column: n_chars, quality, language_score
    missing: dict[str, Share]  # by column: documents without a number
    histograms: dict[str, Distribution]  # n_chars, quality
    groups: dict[str, list[Share]]  # by column: dump, domain, others; the largest groups, then the rest as one
    quality: NDArray[np.float32]  # (n,) a sorted sample

    def medians(self, column: str) -> tuple[float, float] | None:
        """Return the medians of the eligible and of the selected documents, from a histogram; None without any."""
        found = self.histograms[column]
        before, after = median_of(found.edges, found.before), median_of(found.edges, found.after)
        return None if before is None or after is None else (before, after)


def median_of(edges: NDArray[np.float64], counts: NDArray[np.int64]) -> float | None:
    """Return the median of a histogram of `counts`, (b,), between `edges`, (b + 1,); None if it is empty."""
    if not counts.sum():
        return None
    reached = np.cumsum(counts) / counts.sum()
    return float(np.interp(0.5, np.concatenate([[0], reached]), edges))


class Tally:
    """Counter of groups; when there are too many for memory, it forgets the smallest and keeps their sum."""

    def __init__(self) -> None:
        self._documents: Counter[str | None] = Counter()
        self._selected: Counter[str | None] = Counter()
        self._forgotten = np.zeros(3, dtype=np.int64)  # groups, documents, selected

    def add(self, counted: pa.Table) -> None:
        """Add documents that `count_labels` counted."""
        for batch in counted.to_batches(LABELS_AT_ONCE):
            for row in batch.to_pylist():
                self._documents[row["label"]] += row["selected_count"]
                self._selected[row["label"]] += row["selected_sum"]
        if len(self._documents) > TALLIED:
            for label, documents in self._ordered()[KEPT:]:
                self._forgotten += (1, documents, self._selected.pop(label, 0))
                del self._documents[label]

    def _ordered(self) -> list[tuple[str | None, int]]:
        return sorted(self._documents.items(), key=lambda item: (-item[1], item[0] or ""))

    def largest(self, n: int, unknown: str) -> list[Share]:
        """Return the `n` largest groups, then the one without a label as `unknown`, then all others as one."""
        ordered = [item for item in self._ordered() if item[0] is not None]
        shares = [Share(str(label), documents, self._selected[label]) for label, documents in ordered[:n]]
        if self._documents[None]:
            shares.append(Share(unknown, self._documents[None], self._selected[None]))
        rest = ordered[n:]
        groups, documents, selected = self._forgotten.tolist()
        groups += len(rest)
        documents += sum(count for _, count in rest)
        selected += sum(self._selected[label] for label, _ in rest)
        if documents:
            shares.append(Share(f"{groups:,} others", documents, selected))
        return shares


def count_labels(labels: pa.Array | pa.ChunkedArray, selected: pa.ChunkedArray) -> pa.Table:
    """Return how many documents have each label, and how many of them are selected; null is a label, too."""
    counted = pa.table({"label": labels, "selected": pc.cast(selected, pa.int64())})
    return counted.group_by("label").aggregate([("selected", "count"), ("selected", "sum")])


class _Edges(NamedTuple):
    """Edges of the groups of one numeric column, ascending."""

    deciles: NDArray[np.float64]  # at most 11; none if no document has a number
    bins: NDArray[np.float64]  # (BINS + 1,) of the histogram


class _Counts(NamedTuple):
    """Eligible documents (first) and selected documents (second) of one numeric column."""

    deciles: NDArray[np.int64]  # (2, groups)
    bins: NDArray[np.int64]  # (2, BINS)
    missing: NDArray[np.int64]  # (2,) documents without a number


def _count_numbers(values: NDArray[np.float64], selected: NDArray[np.bool_], edges: _Edges) -> _Counts:
    """Count documents with `values` (n,), NaN if unknown, of which `selected` (n,) are selected."""
    deciles, bins = (
        np.stack([counts_of(groups, n), counts_of(groups[selected], n)])
        for one in edges
        for groups, n in [(group_of(values, one), max(0, len(one) - 1))]
    )
    absent = np.isnan(values)
    return _Counts(deciles, bins, np.array([absent.sum(), (absent & selected).sum()]))


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


@local_copies()
def _columns_of(workspace: Workspace, shard: ShardFiles) -> list[str]:
    names: list[str] = read_schema(workspace.resolve(shard.documents)).names
    return names


def _check_columns(present: Iterable[str], by: Sequence[str]) -> None:
    known = set(present) if by else set()
    if "text" in by:
        raise SettingsError(f"report.by: {TEXT_IS_NO_GROUP}")
    if unknown := set(by) - known:
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
    edges = {
        name: _Edges(decile_edges(values), _bins(values, logarithmic=name == "n_chars"))
        for name, values in sample.items()
    }
    tallies = {name: Tally() for name in (*groups, *by)}
    nothing = np.empty(0), np.empty(0, dtype=bool)
    total = {name: _count_numbers(*nothing, one) for name, one in edges.items()}
    for numbers, labels in _counted(workspace, shards, edges, list(tallies)):
        for name, counts in numbers.items():
            total[name] = _Counts(*map(np.add, total[name], counts))
        for name, counted in labels.items():
            tallies[name].add(counted)
    unknown = {"domain": "no url"}
    return Breakdown(
        deciles={name: _shares(edges[name].deciles, counts.deciles) for name, counts in total.items()},
        missing={name: Share("unknown", *counts.missing.tolist()) for name, counts in total.items()},
        histograms={
            name: Distribution(edges[name].bins, *total[name].bins) for name in NUMBERS if name != "language_score"
        },
        groups={name: tally.largest(LARGEST, unknown.get(name, "unknown")) for name, tally in tallies.items()},
        quality=np.sort(sample["quality"]).astype(np.float32),
    )


def _counted(
    workspace: Workspace, shards: Sequence[ShardFiles], edges: Mapping[str, _Edges], labels: Sequence[str]
) -> Iterator[tuple[dict[str, _Counts], dict[str, pa.Table]]]:
    """Yield the counts of every shard: of its numbers, by their edges, and of its labels."""
    count = partial(_count_shard, workspace, edges, labels)
    with ThreadPoolExecutor(COUNTED_AT_ONCE) as pool:
        for first in range(0, len(shards), COUNTED_AT_ONCE):
            yield from pool.map(count, shards[first : first + COUNTED_AT_ONCE])


def _count_shard(
    workspace: Workspace, edges: Mapping[str, _Edges], labels: Sequence[str], shard: ShardFiles
) -> tuple[dict[str, _Counts], dict[str, pa.Table]]:
    raise_if_stopped()
    read = ["n_chars", "language_score", *("url" if name == "domain" else name for name in labels)]
    table = eligible_table(workspace, shard, list(dict.fromkeys(read)))
    selected = table["selected"]
    return (
        {name: _count_numbers(_numbers(table, name), selected.to_numpy(), edges[name]) for name in NUMBERS},
        {
            name: count_labels(domains(table["url"]) if name == "domain" else _labels(table[name]), selected)
            for name in labels
        },
    )


def _sample(workspace: Workspace, shards: Sequence[ShardFiles]) -> dict[str, NDArray[np.float64]]:
    """Return some values of each numeric column, (n,), NaN if unknown."""
    step = max(1, sum(shard.documents.rows for shard in shards) // EDGE_VALUES)
    parts: dict[str, list[NDArray[np.float64]]] = {name: [np.empty(0)] for name in NUMBERS}
    for table in eligible_tables(workspace, shards, ["n_chars", "language_score"], EDGE_SHARDS):
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
