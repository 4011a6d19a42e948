"""Penalise documents of a corpus for near-duplicates of more gain, which are looked for in k-means clusters.

Only documents that may be selected matter, the *candidates*: those of more marginal gain than a floor. They are
divided into clusters by their nearest centre, so that near-duplicates, wherever they are in the corpus, are nearly
always in one cluster. Within it, documents are taken in the order of their gain, and each penalises those still
to come, which then have less (`NearDuplicates.penalised`): the greedy answer.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.passes import Margin
from fineweb_mask.models.selection.corpus.rule import Place, Rule
from fineweb_mask.models.selection.graphs.pairs import similar_pairs
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.k_means import fit_centres, nearest_centres
from fineweb_mask.models.selection.metrics.near_duplicates import NearDuplicates, weights_of
from fineweb_mask.models.settings.selection import NearDuplicateSettings

CLUSTER_DOCUMENTS = 32_768  # of which all pairs are looked at; more where there would be too many clusters
MOST_CLUSTERS = 4_096  # each is read from the files of all shards
FITTED_ROWS = 256  # documents of the sample for each centre
ROUNDS = 5  # of k-means
SPARE = 1.5  # candidates per document of the budget, as some of them are penalised


class Search(NamedTuple):
    """Where near-duplicates are looked for, and where the threshold is expected when they are penalised."""

    floor: float  # gain from which documents are candidates
    centres: Tensor  # (clusters, d) float32, unit rows
    margin: Margin

    def is_wide_enough(self, threshold: Place, cost: int, budget: int) -> bool:
        """Return whether no document below the floor has more gain than a selected one, for the candidates' cost."""
        return self.floor == -math.inf or (threshold.worth >= self.floor and cost >= budget)

    def candidates(self, part: Documents, device: torch.device) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of a part's candidates, (c,) ascending, and their clusters, (c,); gains are known."""
        worth = part.worth
        assert worth is not None  # noqa: S101 - see above
        found = (worth >= np.float32(self.floor)).nonzero()[0]
        if not len(found):
            return found, found
        rows = checked_features(part.vectors[found], device)
        return found, nearest_centres(rows, self.centres).cpu().numpy()


def cluster_centres(sample: Documents, candidates: float, seed: int, device: torch.device) -> Tensor:
    """Return the centres of the clusters of so many candidates, (clusters, d), which are fitted on a sample."""
    clusters = min(max(1, math.ceil(candidates / CLUSTER_DOCUMENTS)), MOST_CLUSTERS)
    vectors = sample.vectors[np.argsort(sample.lots, kind="stable")[: FITTED_ROWS * clusters]]
    rows = checked_features(vectors, device)
    return fit_centres(rows, min(clusters, rows.n), ROUNDS, torch.Generator().manual_seed(seed))


def near_duplicate_penalties(
    rule: Rule, settings: NearDuplicateSettings, documents: Documents, device: torch.device
) -> NDArray[np.float32]:
    """Return the penalties of one cluster's candidates for near-duplicates that come before them, (n,)."""
    order = np.argsort(documents.ties, kind="stable")  # the order of documents of equal gain
    documents = documents.take(order)
    measured = rule.measure(documents, device)
    masses = measured.masses
    pairs = similar_pairs(checked_features(documents.vectors, device), settings.threshold)
    near = NearDuplicates(len(order), pairs, weights_of(pairs, settings.threshold, masses))
    lowered = measured.gains - near.penalised(measured.gains, settings.weight / rule.objective.size, masses)
    penalties = np.zeros(len(order), dtype=np.float32)
    penalty = lowered.clamp(min=0)
    penalties[order] = (penalty if masses is None else penalty / masses).cpu().numpy()
    return penalties
