"""Measure what selecting block by block loses against one selection from all documents.

    python -m benchmarks.vectors newsgroups20.parquet newsgroups.npz
    python -m benchmarks.blocks newsgroups.npz --blocks 6 24 96
    python -m benchmarks.blocks newsgroups.npz --shards newsgroups20.parquet --shards-by topic
    python -m benchmarks.blocks --made 200000 --blocks 1000 --metrics "facility, 0.3"

100% is the objective of one selection from all documents, 0% that of a random one: the objective of the whole, with
every document covered by any selected one. `random`: blocks of documents drawn at random, as the paper has them, each
giving the same share. `order`: blocks of documents that follow each other, here sorted by a column (`--shards-by`).
`likeness`: blocks of documents that are alike, planned on a sample of a quarter of them. `second pass`: every cell once
more, beside what the others really selected.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.synthetic import clustered
from benchmarks.tables import show
from fineweb_mask.models.selection.block import BlockSolver
from fineweb_mask.models.selection.cells import Plan, cells_of, fit_cells, plan_cells, select_from_cell
from fineweb_mask.models.selection.measures import measured
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings

CPU = torch.device("cpu")
OBJECTIVES: dict[str, dict[str, object]] = {
    "facility, 0.3": {"metrics": "facility", "lamb": 0.3},
    "pairwise + facility, 0.3": {"metrics": {"pairwise": 1, "facility": 1}, "lamb": 0.3},
    "pairwise, 0.3": {"metrics": "pairwise", "lamb": 0.3},
    "disf, 0.3": {"metrics": "disf", "lamb": 0.3},
    "facility + disf, 0.5": {"metrics": {"facility": 1, "disf": 1}, "lamb": 0.5},
}
SAMPLED = 1 / 4
RANDOM = 3  # random selections


def main() -> None:
    """Print a table for each number of blocks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path, nargs="?", help="what benchmarks.vectors wrote")
    parser.add_argument("--made", type=int, help="as many made-up documents instead")
    parser.add_argument("--blocks", type=int, nargs="+", default=[6])
    parser.add_argument("--shards", type=Path, help="the source, for --shards-by")
    parser.add_argument("--shards-by", metavar="COLUMN")
    parser.add_argument("--metrics", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    arguments = parser.parse_args()
    if arguments.made:
        features, quality = (np.asarray(one) for one in clustered(arguments.made, 768))
    else:
        stored = np.load(arguments.vectors)
        features, quality = stored["features"], stored["quality"]
    if arguments.shards_by:
        texts = pq.read_table(arguments.shards, columns=["text", arguments.shards_by])
        texts, values = (column.to_pylist() for column in texts.columns)
        values = [value for value, text in zip(values, texts, strict=True) if text]
        order = np.argsort(values, kind="stable")
        features, quality = features[order], quality[order]
    for count in arguments.blocks:
        lines = []
        for name in arguments.metrics:
            lines += compare(name, features, quality, count)
            title = f"{len(features):,} documents, {count} blocks"
            show(title, ["metrics, lamb", "blocks", "objective", "documents as of one block", "seconds"], lines)


def compare(name: str, features: np.ndarray, quality: np.ndarray, count: int) -> list[list[str]]:
    """Return a line for every way to cut blocks."""
    settings = SelectionSettings.model_validate(OBJECTIVES[name] | {"near_duplicates": None})
    n, dice = len(quality), np.random.default_rng(0)
    started = time.perf_counter()
    whole = select(features, quality, settings)
    measured = Whole(features, quality, settings)
    best, seconds = measured.value(whole.indices), time.perf_counter() - started
    random = float(np.mean([measured.value(dice.permutation(n)[: len(whole.indices)]) for _ in range(RANDOM)]))
    lines = [[name, "one", "100%", "100%", f"{seconds:.0f}"]]
    started = time.perf_counter()
    for blocks, chosen in ways(features, quality, settings, count):
        share = (measured.value(chosen) - random) / (best - random)
        same = np.isin(chosen, whole.indices).mean()
        lines.append([name, blocks, f"{share:.2%}", f"{same:.0%}", f"{time.perf_counter() - started:.0f}"])
        started = time.perf_counter()
    return lines


class Whole:
    """The objective of selections from all documents, on one scale."""

    def __init__(self, features: np.ndarray, quality: np.ndarray, settings: SelectionSettings) -> None:
        self._features, self._quality, self._settings = features, quality, settings
        self._block = BlockSolver(features, quality, settings, device="cpu")

    def value(self, chosen: np.ndarray) -> float:
        """Return J of documents (K,)."""
        raw = measured(self._features, self._quality, chosen)
        terms = self._block.scaled({**raw, "quality": raw["mean_quality"]})
        return self._settings.lamb * terms["quality"] + (1 - self._settings.lamb) * terms["diversity"]


def ways(
    features: np.ndarray, quality: np.ndarray, settings: SelectionSettings, count: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what is selected, (K,), by every way to cut blocks."""
    n, dice = len(quality), np.random.default_rng(0)
    for name, order in (("random", dice.permutation(n)), ("order", np.arange(n))):
        parts = np.array_split(order, count)
        yield name, np.concatenate([part[select(features[part], quality[part], settings).indices] for part in parts])
    sample, ones = np.sort(dice.permutation(n)[: round(SAMPLED * n)]), np.ones(n, dtype=np.int64)
    cells = cells_of(features, fit_cells(features[sample], n, 2 * n // count, 0, CPU), CPU)
    sizes = np.bincount(cells)
    options = {"device": CPU, "tokens": ones[sample]}
    plan = plan_cells(features[sample], quality[sample], cells[sample], settings, sizes, **options)
    first = of_cells(features, quality, settings, plan, cells)
    yield f"likeness ({len(sizes)})", first
    again = replace(plan, vectors=features[first], costs=ones[first], cells=cells[first])
    yield "second pass", of_cells(features, quality, settings, again, cells)


def of_cells(
    features: np.ndarray, quality: np.ndarray, settings: SelectionSettings, plan: Plan, cells: np.ndarray
) -> np.ndarray:
    """Select from every cell, and return the documents (K,)."""
    chosen = []
    for cell, rate in enumerate(plan.rates):
        rows = np.flatnonzero(cells == cell)
        if budget := round(rate * len(rows)):
            own, ones = settings.model_copy(update={"budget": budget}), np.ones(len(rows), dtype=np.int64)
            found = select_from_cell(features[rows], quality[rows], own, plan, cell, device=CPU, tokens=ones)
            chosen.append(rows[found.indices])
    return np.concatenate(chosen)


if __name__ == "__main__":
    main()
