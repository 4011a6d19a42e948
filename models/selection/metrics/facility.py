"""`facility`: mean similarity of each document to its nearest selected document."""

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.metrics.base import Bounded
from fineweb_mask.models.selection.neighbours import Neighbours, nearest
from fineweb_mask.models.selection.rows import Rows

SHORTEST_LIST = 32  # neighbours per document, however large the budget
LONGEST_LIST = 512  # neighbours per document, however small the budget
LISTED_PICKS = 3  # selected documents that a list holds on average, so that nearly all hold one


class Facility(Bounded):
    """Mean similarity of each document to its nearest selected document (paper: Facility).

    D = (1/n) sum_v max over selected i of max(0, <x_v, x_i>). All methods read lists of the nearest documents. A
    document without a selected neighbour counts with the similarity of its last neighbour there, and exactly in
    `value`. With a budget of tokens, the mean over v is by tokens.
    """

    def __init__(self, rows: Rows, budget: Budget, lists: Neighbours) -> None:
        """Measure unit rows (n, d) by lists of the nearest documents of each."""
        self.rows, self.lists = rows, lists
        self.demand = (budget.costs.double() / budget.costs.sum()).float()  # of each document in the mean, (n,)

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        return torch.stack([self.demand.double() @ self.best(mask).double() for mask in masks])

    def best(self, mask: Tensor) -> Tensor:
        """Compute every document's similarity to its nearest selected one, exactly: mask (n,) -> (n,) float32."""
        best = torch.where(self.lists.take(mask), self.lists.similarity, -1.0).amax(0)
        missed, chosen = (best < 0).nonzero()[:, 0], mask.nonzero()[:, 0]
        best[missed] = 0.0
        for facilities in torch.split(chosen, self.rows.block_rows) if len(missed) else ():
            columns = self.rows.matrix[facilities].T
            for some in torch.split(missed, self.rows.block_rows):
                best[some] = torch.maximum(best[some], (self.rows.matrix[some] @ columns).amax(1).clamp_(0, 1))
        return best

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate the expected value under independent inclusion probabilities (n,): (n,) float32.

        It is the sum over v of pre_j (s_j - e_j), in one backward and one forward pass over the lists.
        """
        similarity, pi = self.lists.similarity, self.lists.take(inclusion.float())
        advantage = torch.empty_like(pi)
        rest = similarity[-1].clone()  # e_j: expected maximum over the neighbours after j
        for j in range(self.lists.k - 1, -1, -1):
            torch.sub(similarity[j], rest, out=advantage[j])
            rest.addcmul_(pi[j], advantage[j])
        pre = self.demand.clone()  # times the probability that no neighbour before j is selected
        for j in range(self.lists.k):
            advantage[j].mul_(pre)
            pre.addcmul_(pre, pi[j], value=-1)
        return self.lists.sum_back(advantage)

    def gains(self, mask: Tensor) -> Tensor:
        """Sum what the neighbours of each document would gain, or lose to their second choice: (n,) float32."""
        similarity, hit = self.lists.similarity, self.lists.take(mask)
        reach = hit.cumsum(0, dtype=torch.int16)
        last = similarity[-1]
        is_first = hit & (reach == 1)
        first = torch.where(reach[-1] >= 1, (similarity * is_first).sum(0), last)
        second = torch.where(reach[-1] >= 2, (similarity * (hit & (reach == 2))).sum(0), last)
        gains = torch.where(hit, is_first * (first - second), (similarity - first).clamp_(min=0))
        return self.lists.sum_back(gains.mul_(self.demand))

    def place(self, inclusion: Tensor) -> Tensor:
        """Find the similarity at which the inclusion of each document's nearest sums to 1: (n,) float32.

        A document has no use for others beyond it. The tangent with these levels l is the dual of the p-median
        problem: max_i s_vi <= l_v + sum over selected i of max(0, s_vi - l_v).

        The sum runs over v's list: no other document is above l_v, which is at least the last similarity.
        """
        rank = (self.lists.take(inclusion.double()).cumsum(0) < 1).sum(0).clamp_(max=self.lists.k - 1)
        return self.lists.similarity.gather(0, rank[None])[0]

    def tangent(self, place: Tensor) -> tuple[float, Tensor]:
        """Return the tangent at levels (n,)."""
        slopes = self.lists.sum_back((self.lists.similarity - place).clamp_(min=0).mul_(self.demand))
        return float(self.demand.double() @ place.double()), slopes.double()

    def pull(self, place: Tensor, taken: Tensor) -> Tensor:
        """Differentiate the tangent with respect to the levels: (n,) float32."""
        above = (self.lists.take(taken.float()) * (self.lists.similarity > place)).sum(0)
        return (1 - above).mul_(self.demand)

    def moved(self, place: Tensor, step: Tensor, taken: Tensor) -> Tensor:  # noqa: ARG002 - of the base
        """Move levels, none below the last neighbour's similarity: documents outside of the list would count."""
        return torch.maximum(place - step, self.lists.similarity[-1])

    def random_value(self, budget: Budget) -> float:
        """Compute the expected value under equal inclusion probabilities, on the lists."""
        lists, rate = self.lists, min(budget.size / budget.n, 1.0)
        nearest_is = rate * (1 - rate) ** torch.arange(lists.k, dtype=torch.float64, device=self.demand.device)
        nearest_is[-1] = (1 - rate) ** (lists.k - 1)
        return float(nearest_is @ (lists.similarity.double() @ self.demand.double()))

    def among(self, index: Tensor, part: Budget, whole: Budget) -> "Facility":  # noqa: ARG002 - of others
        """Return the metric of some documents, index (b,), with their own lists."""
        rows = self.rows.only(index)
        return Facility(rows, part, nearest(rows, list_length(part)))


def list_length(budget: Budget) -> int:
    """Return how many neighbours lists hold for `facility`."""
    return max(SHORTEST_LIST, min(LONGEST_LIST, -int(-LISTED_PICKS * budget.n // max(1.0, budget.size))))
