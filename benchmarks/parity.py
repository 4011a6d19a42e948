"""Record what a solver selects of every corpus and objective, and hold another one against it.

    python -m benchmarks.vectors web_mix.parquet VECTORS/web_mix.npz       (and newsgroups20, and the sample's corpus)
    python -m benchmarks.parity record OLD --vectors VECTORS
    python -m benchmarks.parity record NEW --vectors VECTORS               (of another checkout)
    python -m benchmarks.parity compare OLD NEW --vectors VECTORS

A cell is a corpus, a mix of metrics and a lamb. Its file holds which documents are selected, the objective, that of a
random selection, the bound and the seconds, ranges and proof included. `compare` evaluates both selections under the
objective of the checkout that it runs in, with one set of ranges: 100% is the first one's gain over a random
selection.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.synthetic import clustered
from benchmarks.tables import show
from fineweb_mask.models.selection.block import BlockSolver
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings

SYNTHETIC = (2_000, 10_000, 50_000)
MIXES = ("pairwise", "facility", "disf", "pairwise+facility", "facility+disf")
LAMBS = (0.1, 0.5)


class Cell(NamedTuple):
    """One objective on one corpus."""

    corpus: str
    mix: str
    lamb: float

    @property
    def file(self) -> str:
        """The name of its record."""
        return f"{self.corpus},{self.mix},{self.lamb:g}.npz"

    @property
    def settings(self) -> SelectionSettings:
        """The objective, for a tenth of the documents, near-duplicates among them."""
        metrics = dict.fromkeys(self.mix.split("+"), 1.0)
        return SelectionSettings(metrics=metrics, lamb=self.lamb, near_duplicates=None)


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["record", "compare"])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--vectors", type=Path, required=True, help="folder of what benchmarks.vectors wrote")
    parser.add_argument("--corpora", nargs="*", help="names of some of the corpora, for a first look")
    parser.add_argument("--mixes", nargs="*", default=MIXES)
    arguments = parser.parse_args()
    cells = cells_of(arguments.vectors, arguments.corpora, arguments.mixes)
    if arguments.part == "record":
        record(cells, arguments.folders[0], arguments.vectors)
    else:
        compare(cells, *arguments.folders, arguments.vectors)


def cells_of(vectors: Path, corpora: list[str] | None, mixes: list[str]) -> list[Cell]:
    """Return the cells, those of one corpus after the other."""
    known = [f"synthetic-{n}" for n in SYNTHETIC] + sorted(path.stem for path in vectors.glob("*.npz"))
    return [Cell(corpus, mix, lamb) for corpus in corpora or known for mix in mixes for lamb in LAMBS]


def corpora_of(cells: list[Cell], vectors: Path) -> Iterator[tuple[Cell, np.ndarray, np.ndarray]]:
    """Yield every cell with its vectors (n, d) and quality (n,), read once for each corpus."""
    read = ""
    for cell in cells:
        if cell.corpus != read:
            read = cell.corpus
            if read.startswith("synthetic-"):
                features, quality = clustered(int(read.removeprefix("synthetic-")))
            else:
                with np.load(vectors / f"{read}.npz") as held:
                    features, quality = held["features"], held["quality"]
        yield cell, features, quality


def record(cells: list[Cell], folder: Path, vectors: Path) -> None:
    """Select in every cell that has no file yet."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not (folder / cell.file).exists()]
    for cell, features, quality in corpora_of(missing, vectors):
        started = time.perf_counter()
        selection = select(features, quality, cell.settings)
        seconds = time.perf_counter() - started
        numbers = {"objective": selection.objective, "random": selection.random_objective, "seconds": seconds}
        np.savez(folder / cell.file, indices=selection.indices, bound=selection.upper_bound or np.nan, **numbers)
        print(f"{cell.file}: {selection.objective:.5f}, gap {selection.gap or np.nan:.2%}, {seconds:.1f} s", flush=True)


def compare(cells: list[Cell], old: Path, new: Path, vectors: Path) -> None:
    """Print the second folder's gain over a random selection as a share of the first one's."""
    lines, shares = [], []
    both = [cell for cell in cells if (old / cell.file).exists() and (new / cell.file).exists()]
    for cell, features, quality in corpora_of(both, vectors):
        block = BlockSolver(features, quality, cell.settings, device="cpu")
        objective = block.objective
        found, seconds, gaps = [], [], []
        for folder in (old, new):
            with np.load(folder / cell.file) as held:
                mask = torch.zeros(len(quality), dtype=torch.bool)
                mask[torch.from_numpy(held["indices"])] = True
                found.append(objective.value_of(mask))
                seconds.append(float(held["seconds"]))
                gaps.append((held["bound"] - held["objective"]) / (held["bound"] - held["random"]))
        random = block.random_objective
        shares.append((found[1] - random) / (found[0] - random))
        times = [f"{one:.1f}" for one in seconds]
        lines.append([*map(str, cell), f"{shares[-1]:.2%}", *(f"{gap:.2%}" for gap in gaps), *times])
    header = ["corpus", "metrics", "lamb", "share of the gain", "gap before", "gap after", "s before", "s after"]
    show(f"least {min(shares):.2%}, mean {np.mean(shares):.2%}", header, lines)


if __name__ == "__main__":
    main()
