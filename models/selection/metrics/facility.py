"""`facility`: how near every document has a selected one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import BuiltInMetric
from fineweb_mask.models.selection.neighbours import Neighbours, nearest
from fineweb_mask.models.selection.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor


class Facility(BuiltInMetric):
    """How well the selection represents all documents: the mean similarity to the nearest selected one.

    D = (1/n) sum_v max over selected i of max(0, <x_v, x_i>) (paper: Facility). Gradients and the relaxation
    read an exact graph of nearest documents, built on first use; a document none of whose neighbours is
    selected counts with its last neighbour's similarity there, and exactly in `value`.
    """

    name = "facility"

    def __init__(self, rows: Rows, n_neighbours: int = 64) -> None:
        self.rows = rows
        self.n_neighbours = n_neighbours
        self._graph: Neighbours | None = None

    @property
    def graph(self) -> Neighbours:
        """The lists of nearest documents."""
        if self._graph is None:
            self._graph = nearest(self.rows, self.n_neighbours)
        return self._graph

    def value(self, masks: Tensor) -> Tensor:
        """See the base class."""
        return self.best(masks).mean(0, dtype=torch.float64)

    def best(self, masks: Tensor) -> Tensor:
        """Give every document's similarity to the nearest selected one, exactly: masks (G, n) -> (n, G) float32."""
        best = torch.full(masks.T.shape, -1.0, device=self.rows.device)
        if self._graph is not None:
            selects = masks.T.contiguous()
            for index, similarity in zip(self._graph.index.flip(0), self._graph.similarity.flip(0), strict=True):
                best = torch.where(selects[index], similarity[:, None], best)
        missed = best < 0
        for group in missed.any(0).nonzero()[:, 0].tolist():
            documents = missed[:, group].nonzero()[:, 0]
            best[documents, group] = self._search(documents, masks[group].nonzero()[:, 0])
        return best

    def _search(self, documents: Tensor, chosen: Tensor) -> Tensor:
        """Find the nearest of the chosen by products: (len(documents),), memory bounded in both."""
        best = torch.zeros(len(documents), device=self.rows.device)
        for facilities in torch.split(chosen, self.rows.block_rows):
            columns = self.rows.take(facilities).T
            rows_at_once = max(1, self.rows.block_rows * self.rows.d // columns.shape[1])
            blocks = torch.split(documents, min(rows_at_once, self.rows.block_rows))
            parts = [(self.rows.take(part) @ columns).amax(1) for part in track("blocks of documents", blocks)]
            if parts:
                best = torch.maximum(best, torch.cat(parts))
        return best.clamp_(max=1.0)

    def expected(self, inclusion: Tensor) -> float:
        """Give the expected value under independent inclusion probabilities (n,), on the graph."""
        similarity, pi = self.graph.similarity, inclusion[self.graph.index]
        value = similarity[-1].clone()
        for j in range(self.graph.k - 1, -1, -1):
            value = torch.lerp(value, similarity[j], pi[j])
        return float(value.mean(dtype=torch.float64))

    def gradient(self, inclusion: Tensor) -> Tensor:
        """See the base class: (1/n) sum_v pre_j (s_j - e_j), in one pass back and one forth."""
        similarity = self.graph.similarity
        pi = inclusion.float()[self.graph.index]
        advantage = torch.empty_like(pi)
        rest = similarity[-1].clone()  # e_j: expected maximum over the neighbours after j
        for j in range(self.graph.k - 1, -1, -1):
            torch.sub(similarity[j], rest, out=advantage[j])
            rest.addcmul_(pi[j], advantage[j])
        pre = torch.ones_like(rest)  # probability that no neighbour before j is selected
        for j in range(self.graph.k):
            advantage[j].mul_(pre)
            pre.addcmul_(pre, pi[j], value=-1)
        return self.graph.sum_back(advantage).div_(self.rows.n)

    def relaxed(self, inclusion: Tensor) -> tuple[float, Tensor]:
        """See the base class: h = (1/n) sum_v sum_j (s_j - s_(j+1)) min(1, sum of inclusion up to j).

        Where that sum passes 1 at rank j of v, v is indifferent to what lies beyond s_j, so the supergradient
        of i is (1/n) sum_v max(0, s_vi - s_j): the dual of the p-median problem.
        """
        similarity = self.graph.similarity
        reach = inclusion.double()[self.graph.index].cumsum(0).clamp_(max=1)
        steps = similarity.double().diff(dim=0).neg_()
        value = float(((steps * reach[:-1]).sum(0) + similarity[-1]).mean())
        level = self.levels(inclusion)
        gradient = self.graph.sum_back((similarity - level).clamp_(min=0)).double() / self.rows.n
        return value, gradient

    def levels(self, inclusion: Tensor) -> Tensor:
        """Give the similarity at which the inclusion of each document's nearest sums to 1: (n,) float32."""
        reach = inclusion.double()[self.graph.index].cumsum(0)
        rank = (reach < 1).sum(0).clamp_(max=self.graph.k - 1)
        return self.graph.similarity.gather(0, rank[None])[0]

    def worth(self, mask: Tensor) -> Tensor:
        """See the base class: what its neighbours would gain, or lose to their second choice."""
        similarity, hit = self.graph.similarity, mask[self.graph.index]
        reach = hit.cumsum(0, dtype=torch.int16)
        last = similarity[-1]
        first_rank = hit & (reach == 1)
        first = torch.where(reach[-1] >= 1, (similarity * first_rank).sum(0), last)
        second = torch.where(reach[-1] >= 2, (similarity * (hit & (reach == 2))).sum(0), last)
        gains = torch.where(hit, first_rank * (first - second), (similarity - first).clamp_(min=0))
        return self.graph.sum_back(gains).div_(self.rows.n)

    def random_value(self, budget: int) -> float:
        """Give the expected value under equal inclusion probabilities, on the graph."""
        n = self.rows.n
        return self.expected(torch.full((n,), budget / n, device=self.rows.device))

    def restrict(self, index: Tensor) -> Facility:
        """See the base class; the batch has a graph of its own, which every group of masks over it reads."""
        batch = Facility(Rows(self.rows.take(index)), self.n_neighbours)
        _ = batch.graph
        return batch
