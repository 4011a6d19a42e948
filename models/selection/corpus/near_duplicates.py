"""Charge documents of a corpus for near-duplicates that are worth more, which are looked for cell by cell.

Only documents that may be selected matter, the *candidates*: those of more worth than a floor. They are divided into
cells by their nearest centre, so that near-duplicates, wherever they are in the corpus, are nearly always in one cell.
Within it, documents are taken in the order of worth, and each charges those that are still to come, which then have
less worth (`NearDuplicates.charged`): the greedy answer.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.corpus.documents import (
    Arrays,
    Documents,
    by_name,
    inside,
    named,
    prefixed,
    without_prefix,
)
from fineweb_mask.models.selection.corpus.passes import Margin, margin_arrays, margins_of
from fineweb_mask.models.selection.corpus.rule import Place, Rule
from fineweb_mask.models.selection.graphs.pairs import similar_pairs
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.k_means import fit_centres, nearest_centres
from fineweb_mask.models.selection.metrics.near_duplicates import NearDuplicates, weights_of
from fineweb_mask.models.settings.selection import NearDuplicateSettings

CELL_DOCUMENTS = 32_768  # of which all pairs are looked at; more where there would be too many cells
MOST_CELLS = 4_096  # each is read from the files of all shards
FITTED_ROWS = 256  # documents of the sample for each centre
ROUNDS = 5  # of k-means
SPARE = 1.5  # candidates per document of the budget, as some of them are charged


class Search(NamedTuple):
    """Where near-duplicates are looked for, and where the threshold is expected when they are charged."""

    floors: Mapping[str, float]  # by group: worth from which documents are candidates
    levels: Mapping[str, float]  # by group: worth at which the threshold is expected without charges
    centres: Tensor  # (cells, d) float32, unit rows
    margins: Mapping[str, Margin]

    def is_wide_enough(
        self, thresholds: Mapping[str, Place], costs: Mapping[str, int], budgets: Mapping[str, int]
    ) -> bool:
        """Return whether no document below a floor is worth more than a selected one, for the candidates' costs."""
        return all(
            floor == -math.inf or (thresholds[name].worth >= floor and costs[name] >= budgets[name])
            for name, floor in self.floors.items()
        )

    def arrays(self) -> Arrays:
        """Return what `of_arrays` makes the search of."""
        return {
            "centres": self.centres.cpu().numpy(),
            **prefixed("floors", named(self.floors)),
            **prefixed("levels", named(self.levels)),
            **prefixed("margins", margin_arrays(self.margins)),
        }

    @classmethod
    def of_arrays(cls, arrays: Arrays, device: torch.device) -> Self:
        """Make the search of its arrays."""
        floors, levels = (
            {name: float(value) for name, value in by_name(without_prefix(kind, arrays))}
            for kind in ("floors", "levels")
        )
        centres = torch.as_tensor(arrays["centres"], device=device)
        return cls(floors, levels, centres, margins_of(without_prefix("margins", arrays)))

    def candidates(self, part: Documents, device: torch.device) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of a part's candidates, (c,) ascending, and their cells, (c,); their worth is known."""
        worth = part.worth
        assert worth is not None  # noqa: S101 - see above
        chosen = np.zeros(len(worth), dtype=bool)
        for name, own in inside(part, self.floors):
            chosen[own] = worth[own] >= np.float32(self.floors[name])
        found = chosen.nonzero()[0]
        if not len(found):
            return found, found
        rows = checked_features(part.vectors[found], device)
        return found, nearest_centres(rows, self.centres).cpu().numpy()


def cell_centres(sample: Documents, candidates: float, seed: int, device: torch.device) -> Tensor:
    """Return the centres of the cells of so many candidates, (cells, d), which are fitted on a sample."""
    cells = min(max(1, math.ceil(candidates / CELL_DOCUMENTS)), MOST_CELLS)
    vectors = sample.vectors[np.argsort(sample.lots, kind="stable")[: FITTED_ROWS * cells]]
    rows = checked_features(vectors, device)
    return fit_centres(rows, min(cells, rows.n), ROUNDS, torch.Generator(device).manual_seed(seed))


def near_duplicate_charges(
    rule: Rule, levels: Mapping[str, float], settings: NearDuplicateSettings, documents: Documents, device: torch.device
) -> NDArray[np.float32]:
    """Return what the candidates of one cell pay for near-duplicates that come before them, (n,): of their worth.

    Documents of different groups are compared by what they are worth above the level of their group.
    """
    order = np.argsort(documents.ties, kind="stable")  # the order of documents of equal worth
    documents = documents.take(order)
    measured = rule.measure(documents, device)
    masses = measured.masses
    pairs = similar_pairs(checked_features(documents.vectors, device), settings.threshold)
    near = NearDuplicates(len(order), pairs, weights_of(pairs, settings.threshold, masses))
    above = np.zeros(len(order), dtype=np.float32)
    for name, own in inside(documents, levels):
        above[own] = levels[name]
    gains = torch.as_tensor(above, device=device)
    gains = measured.gains - (gains if masses is None else gains * masses)
    charged = near.charged(gains, settings.weight / rule.objective.size, masses)
    charges = np.zeros(len(order), dtype=np.float32)
    paid = (gains - charged).clamp(min=0)
    charges[order] = (paid if masses is None else paid / masses).cpu().numpy()
    return charges
