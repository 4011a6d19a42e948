"""Count eligible and selected documents by group: dump, domain, length, quality, language score or any column.

It makes two passes over all shards, with one shard in memory at a time. The first takes the edges of numeric groups
from a sample; the second counts every eligible document. Numeric groups can also be counted part by part: with edges
from `number_edges`, `count_numbers` counts some of the shards, and `add_numbers` adds the counts of all parts up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.analysis.groups import counts_of, decile_edges, domains, group_of
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.samples import eligible_tables, evenly_spaced
from fineweb_mask.tasks.storage.parquet import read_schema
from fineweb_mask.tasks.storage.scratch import pinned
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

    def add(self, labels: pa.Array | pa.ChunkedArray, selected: pa.ChunkedArray) -> None:
        """Count documents by label; null is also a group."""
        counted = pa.table({"label": labels, "selected": pc.cast(selected, pa.int64())})
        counted = counted.group_by("label").aggregate([("selected", "count"), ("selected", "sum")])
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


class Edges(BaseModel):
    """Edges of the groups of one numeric column."""

    deciles: list[float]  # ascending, at most 11; none if no document has a number
    bins: list[float]  # (BINS + 1,) of the histogram


class NumberCounts(BaseModel):
    """Eligible documents (first) and selected documents (second) of one numeric column."""

    deciles: list[list[int]]  # (2, groups)
    bins: list[list[int]]  # (2, BINS)
    missing: list[int]  # (2,) documents without a number


class _NumberTally:
    """Counter of one numeric column, by decile and by bin."""

    def __init__(self, edges: Edges) -> None:
        self._edges = np.array(edges.deciles)
        self._bins = np.array(edges.bins)
        self._groups = np.zeros((2, max(0, len(self._edges) - 1)), dtype=np.int64)  # eligible, selected
        self._histogram = np.zeros((2, BINS), dtype=np.int64)
        self._missing = np.zeros(2, dtype=np.int64)

    def add(self, values: NDArray[np.float64], selected: NDArray[np.bool_]) -> None:
        """Count documents with `values` (n,), NaN if unknown, of which `selected` (n,) are selected."""
        groups = group_of(values, self._edges)
        absent = np.isnan(values)
        for row, part in enumerate((np.ones_like(selected), selected)):
            self._groups[row] += counts_of(groups[part], self._groups.shape[1])
            self._missing[row] += (absent & part).sum()
            inside = np.clip(values[part & ~absent], self._bins[0], self._bins[-1])
            self._histogram[row] += np.histogram(inside, self._bins)[0]

    @property
    def counts(self) -> NumberCounts:
        return NumberCounts(
            deciles=self._groups.tolist(), bins=self._histogram.tolist(), missing=self._missing.tolist()
        )


def _shares(edges: Sequence[float], counts: NumberCounts) -> list[Share]:
    """Return the deciles, lowest first, labelled with just enough decimals to distinguish their edges."""
    whole = all(edge == int(edge) for edge in edges)
    digits = 0 if whole else next((n for n in (2, 3, 4, 5) if len({f"{e:.{n}f}" for e in edges}) == len(edges)), 6)
    counted = zip(*counts.deciles, edges, edges[1:], strict=False)
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


@pinned()
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
    sample = _sample(workspace, shards, sum(shard.documents.rows for shard in shards))
    edges = _edges(sample)
    tallies = {name: Tally() for name in (*groups, *by)}
    counts = _count(workspace, shards, edges, tallies)
    unknown = {"domain": "no url"}
    return add_numbers(edges, [counts])._replace(
        groups={name: tally.largest(LARGEST, unknown.get(name, "unknown")) for name, tally in tallies.items()},
        quality=np.sort(sample["quality"]).astype(np.float32),
    )


def sampled_for_edges(shards: Sequence[ShardFiles]) -> list[ShardFiles]:
    """Return the shards that the edges of numeric groups are taken from."""
    return [shards[index] for index in evenly_spaced(len(shards), EDGE_SHARDS)]


def number_edges(workspace: Workspace, sampled: Sequence[ShardFiles], rows: int) -> dict[str, Edges]:
    """Return the edges of every numeric column's groups, from the `sampled_for_edges` of a corpus of `rows` documents.

    They are those of `break_down` of all shards.
    """
    return _edges(_sample(workspace, sampled, rows))


def count_numbers(
    workspace: Workspace, shards: Sequence[ShardFiles], edges: Mapping[str, Edges]
) -> dict[str, NumberCounts]:
    """Count the eligible and the selected documents of some of the shards, by numeric column."""
    return _count(workspace, shards, edges, {})


def add_numbers(edges: Mapping[str, Edges], parts: Sequence[Mapping[str, NumberCounts]]) -> Breakdown:
    """Add up what `count_numbers` returned of all parts of a corpus; the result has no groups and no sample."""
    total = {
        name: NumberCounts(
            deciles=_sums([part[name].deciles for part in parts]),
            bins=_sums([part[name].bins for part in parts]),
            missing=_sums([part[name].missing for part in parts]),
        )
        for name in edges
    }
    return Breakdown(
        deciles={name: _shares(edges[name].deciles, counts) for name, counts in total.items()},
        missing={name: Share("unknown", *counts.missing) for name, counts in total.items()},
        histograms={
            name: Distribution(np.array(edges[name].bins), *np.array(counts.bins, dtype=np.int64))
            for name, counts in total.items()
            if name != "language_score"
        },
        groups={},
        quality=np.empty(0, dtype=np.float32),
    )


def _sums(arrays: Sequence[Any]) -> Any:  # noqa: ANN401 - a list of integers, or of lists of them
    return np.sum(np.array(arrays, dtype=np.int64), axis=0).tolist()


def _count(
    workspace: Workspace, shards: Sequence[ShardFiles], edges: Mapping[str, Edges], tallies: Mapping[str, Tally]
) -> dict[str, NumberCounts]:
    """Count numbers, and add the other groups to `tallies`, in one pass over the shards."""
    numbers = {name: _NumberTally(edges[name]) for name in NUMBERS}
    read = ["n_chars", "language_score", *("url" if name == "domain" else name for name in tallies)]
    for table in eligible_tables(workspace, shards, list(dict.fromkeys(read))):
        selected = table["selected"]
        for name, number in numbers.items():
            number.add(_numbers(table, name), selected.to_numpy())
        for name, tally in tallies.items():
            tally.add(domains(table["url"]) if name == "domain" else _labels(table[name]), selected)
    return {name: number.counts for name, number in numbers.items()}


def _edges(sample: Mapping[str, NDArray[np.float64]]) -> dict[str, Edges]:
    return {
        name: Edges(deciles=decile_edges(values).tolist(), bins=_bins(values, logarithmic=name == "n_chars").tolist())
        for name, values in sample.items()
    }


def _sample(workspace: Workspace, shards: Sequence[ShardFiles], rows: int) -> dict[str, NDArray[np.float64]]:
    """Return some values of each numeric column of a corpus of `rows` documents, (n,), NaN if unknown."""
    step = max(1, rows // EDGE_VALUES)
    parts: dict[str, list[NDArray[np.float64]]] = {name: [np.empty(0)] for name in NUMBERS}
    for table in eligible_tables(workspace, shards, ["n_chars", "language_score"], EDGE_SHARDS):
        for name, part in parts.items():
            part.append(_numbers(table, name)[::step].copy())
    return {name: np.concatenate(part) for name, part in parts.items()}


def _labels(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as text, with null in place of empty text.

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
