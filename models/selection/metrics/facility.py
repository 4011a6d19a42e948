"""`facility`: mean similarity of each document to its nearest selected document."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.graphs.neighbours import EVERYONE, RECALL, Neighbours, find_neighbours
from fineweb_mask.models.selection.metrics.base import EFFORT, BuiltInMetric
from fineweb_mask.models.selection.metrics.kernel import falling_step
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings.selection import Graph, SelectionSettings

DENSE_BYTES = {"cpu": 12 << 30, "cuda": 64 << 30}  # the largest (n, n) float32: n = 56,000 and n = 131,000
SHORTEST_LIST = 64  # neighbours per document, however large the budget
LONGEST_LIST = 512  # neighbours per document, however small the budget
STANDARD_ERRORS = 3  # added to the mean that a sample estimates, for a bound


class Facility(BuiltInMetric):
    """Mean similarity of each document to its nearest selected document (paper: Facility).

    D = (1/n) sum_v max over selected i of max(0, <x_v, x_i>). Gradients and tangents read lists of the nearest
    documents, found on first use. A document without a selected neighbour counts with the similarity of its last
    neighbour there, and exactly in `value`. With masses (a budget of tokens by tokens), the mean over v is by mass.

    Approximate lists miss some neighbours, so that `value` may read a less near selected document than the nearest:
    D is then at most its true value, by 0.0002% where they hold 98%. It is not searched exactly, because that takes
    n K products for each evaluation, more than the lists. Before they are found, `value` is exact.
    """

    def __init__(
        self,
        rows: Rows,
        n_neighbours: int = SHORTEST_LIST,
        masses: Tensor | None = None,
        *,
        graph: Graph = "auto",
        recall: float = RECALL,
        seed: int = 0,
    ) -> None:
        self.rows, self.masses = rows, masses
        self.n_neighbours = n_neighbours
        self._how: dict[str, Any] = {"graph": graph, "recall": recall, "seed": seed}
        self._graph: Neighbours | None = None
        self._searched: _Searched | None = None

    @classmethod
    def for_block(
        cls, rows: Rows, settings: SelectionSettings, budget: float, masses: Tensor | None = None
    ) -> "Facility":
        """Make the metric with lists that hold six selected documents on average, so that nearly all hold one."""
        length = max(SHORTEST_LIST, min(LONGEST_LIST, math.ceil(6 * rows.n / budget)))
        return cls(rows, length, masses, graph=settings.mean_field.graph, seed=settings.seed)

    def weighed(self, values: Tensor, part: slice = EVERYONE) -> Tensor:
        """Weigh a value of every document, or of a part of b, (..., b), by its share of the mean over all."""
        return values if self.masses is None else values * (self.masses * (self.rows.n / self.masses.sum()))[part]

    @property
    def graph(self) -> Neighbours:
        """The lists of nearest documents."""
        if self._graph is None:
            self._graph = find_neighbours(self.rows, self.n_neighbours, **self._how)
        return self._graph

    @property
    def bound_assumes(self) -> str | None:
        """What a bound by tangents takes for granted; None if it is proven."""
        missed = None if self._graph is None else self._graph.missed
        if missed is None or len(missed.documents) == self.rows.n:
            return None
        return (
            f"facility: the lists of neighbours hold {missed.recall:.1%} of the nearest, and what they miss was "
            f"estimated from {len(missed.documents)} documents"
        )

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        return self.weighed(self.best(masks).T).T.mean(0, dtype=torch.float64)

    def best(self, masks: Tensor) -> Tensor:
        """Compute every document's similarity to its nearest selected one, exactly: masks (G, n) -> (n, G) float32."""
        best = torch.full(masks.T.shape, -1.0, device=self.rows.device)
        if (graph := self._graph) is not None:
            for group, mask in enumerate(masks):
                for part in graph.parts():
                    best[part, group] = torch.where(graph.take(mask, part), graph.similarity[:, part], -1.0).amax(0)
        missed = best < 0
        for group in missed.any(0).nonzero()[:, 0].tolist():
            documents = missed[:, group].nonzero()[:, 0]
            best[documents, group] = self._exactly(documents, masks[group])
        return best

    def _exactly(self, documents: Tensor, mask: Tensor) -> Tensor:
        """Compute some documents' similarity to their nearest in a mask (n,) bool: (len(documents),) float32.

        Those whose nearest in the mask before is in this one, too, are multiplied with what was added alone.
        """
        similarity = torch.full((self.rows.n,), -torch.inf, device=self.rows.device)
        nearest = torch.zeros(self.rows.n, dtype=torch.int64, device=self.rows.device)
        if (before := self._searched) is not None:
            held = documents[mask[before.nearest[documents]] & before.similarity[documents].isfinite()]
            similarity[held], nearest[held] = before.similarity[held], before.nearest[held]
            self._search(held, (mask & ~before.mask).nonzero()[:, 0], similarity, nearest)
        self._search(documents[similarity[documents].isinf()], mask.nonzero()[:, 0], similarity, nearest)
        self._searched = _Searched(mask.clone(), similarity, nearest)
        return similarity[documents].clamp_(0, 1)

    def _search(self, documents: Tensor, chosen: Tensor, similarity: Tensor, nearest: Tensor) -> None:
        """Look among the chosen for what is nearer to some documents than (n,) `nearest`, block by block, in place."""
        for facilities in torch.split(chosen, self.rows.block_rows) if len(documents) and len(chosen) else ():
            columns = self.rows.take(facilities).T
            rows_at_once = max(1, self.rows.block_rows * self.rows.d // columns.shape[1])
            blocks = torch.split(documents, min(rows_at_once, self.rows.block_rows))
            for part in track("blocks of documents", blocks):
                best, place = (self.rows.take(part) @ columns).max(1)
                nearer = best > similarity[part]
                similarity[part[nearer]], nearest[part[nearer]] = best[nearer], facilities[place[nearer]]

    def expected(self, inclusion: Tensor) -> float:
        """Compute the expected value under independent inclusion probabilities (n,), on the graph."""
        graph = self.graph

        def of_part(part: slice) -> Tensor:
            similarity, pi = graph.similarity[:, part], graph.take(inclusion, part)
            value = similarity[-1].clone()
            for j in range(graph.k - 1, -1, -1):
                value = torch.lerp(value, similarity[j], pi[j])
            return value

        return float(self.weighed(graph.by_part(of_part)).mean(dtype=torch.float64))

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Compute (1/n) sum_v pre_j (s_j - e_j), in one backward and one forward pass: (n,) float32."""
        graph, inclusion = self.graph, inclusion.float()

        def of_part(part: slice) -> Tensor:
            similarity, pi = graph.similarity[:, part], graph.take(inclusion, part)
            advantage = torch.empty_like(pi)
            rest = similarity[-1].clone()  # e_j: expected maximum over the neighbours after j
            for j in range(graph.k - 1, -1, -1):
                torch.sub(similarity[j], rest, out=advantage[j])
                rest.addcmul_(pi[j], advantage[j])
            pre = torch.ones_like(rest)  # probability that no neighbour before j is selected
            for j in range(graph.k):
                advantage[j].mul_(pre)
                pre.addcmul_(pre, pi[j], value=-1)
            return self.weighed(advantage, part)

        return graph.sum_back(of_part).div_(self.rows.n)

    def tangent(self, inclusion: Tensor, budget: float, weight: float) -> "FacilityTangent":  # noqa: ARG002 - holds for any
        """Return the tangent of weight * D at inclusion probabilities (n,)."""
        return FacilityTangent(self, self.levels(inclusion), weight)

    def gains(self, budget: float, weight: float) -> "FacilityGains":  # noqa: ARG002 - the same for every budget
        """Return the marginal gains of weight * D, for an empty selection."""
        return FacilityGains(self, weight)

    def neighbours(self, count: int) -> Tensor:
        """Return the `count` nearest documents of each, itself first, (count, n) int32."""
        return self.graph.index[:count]

    def levels(self, inclusion: Tensor) -> Tensor:
        """Find the similarity at which the inclusion of each document's nearest sums to 1: (n,) float32."""
        graph, inclusion = self.graph, inclusion.double()

        def of_part(part: slice) -> Tensor:
            rank = (graph.take(inclusion, part).cumsum(0) < 1).sum(0).clamp_(max=graph.k - 1)
            return graph.similarity[:, part].gather(0, rank[None])[0]

        return graph.by_part(of_part)

    def marginal_gains(self, mask: Tensor) -> Tensor:
        """Sum what the neighbours of each document would gain, or lose to their second choice: (n,) float32."""
        graph = self.graph

        def of_part(part: slice) -> Tensor:
            similarity, hit = graph.similarity[:, part], graph.take(mask, part)
            reach = hit.cumsum(0, dtype=torch.int16)
            last = similarity[-1]
            first_rank = hit & (reach == 1)
            first = torch.where(reach[-1] >= 1, (similarity * first_rank).sum(0), last)
            second = torch.where(reach[-1] >= 2, (similarity * (hit & (reach == 2))).sum(0), last)
            gains = torch.where(hit, first_rank * (first - second), (similarity - first).clamp_(min=0))
            return self.weighed(gains, part)

        return graph.sum_back(of_part).div_(self.rows.n)

    def random_value(self, budget: float) -> float:
        """Compute the expected value under equal inclusion probabilities, on the graph."""
        return self.expected(torch.full((self.rows.n,), budget / self.rows.n, device=self.rows.device))

    def restrict(self, index: Tensor) -> "Facility":
        """Return the metric of a batch (b,) with its own graph, built once for all masks over it."""
        masses = None if self.masses is None else self.masses[index]
        batch = Facility(Rows(self.rows.take(index)), self.n_neighbours, masses, **self._how)
        _ = batch.graph
        return batch


@dataclass(frozen=True)
class _Searched:
    """The nearest in a mask of the documents that were last searched; the others' similarity is -inf."""

    mask: Tensor  # (n,) bool
    similarity: Tensor  # (n,) float32
    nearest: Tensor  # (n,) int64, documents


class FacilityTangent:
    """The tangent of weighted facility location at one level lambda_v for each document.

    max_i s_vi <= lambda_v + sum over selected i of max(0, s_vi - lambda_v): the dual of the p-median problem. At
    probabilities, lambda_v is where the inclusion of v's nearest sums to 1: v has no use for documents beyond it.

    The sum runs over v's list. With exact lists no other document is above lambda_v, which is at least the last
    similarity. With approximate lists one may be, u_v at most, and the inequality holds with max(0, u_v - lambda_v)
    added on its right. To know every u_v takes all products, as exact lists do. So the mean of what is added is
    estimated from documents sampled at random, whose u_v are exact, plus three standard errors. The levels are moved
    without regard to the sample, which so remains one. The bound is then not proven (`Facility.bound_assumes`), except
    where the sample is all documents.
    """

    effort = EFFORT
    of_shares: bool | None = False  # it holds for every mask

    def __init__(self, metric: Facility, level: Tensor, weight: float) -> None:
        self.metric, self.graph, self.level, self.weight = metric, metric.graph, level, weight

    def evaluate(self) -> tuple[float, Tensor]:
        """Return the height and the slope of every document, (n,) float64."""

        def of_part(part: slice) -> Tensor:
            return self.metric.weighed((self.graph.similarity[:, part] - self.level[part]).clamp_(min=0), part)

        over = self.graph.sum_back(of_part).double()
        height = float(self.metric.weighed(self.level).mean(dtype=torch.float64)) + self.missing()
        return self.weight * height, self.weight / len(self.level) * over

    def missing(self) -> float:
        """Estimate, from above, the mean over all documents of what those that their lists miss may add to D."""
        missed, n = self.graph.missed, len(self.level)
        if missed is None:
            return 0.0
        added = (missed.largest - self.level[missed.documents]).clamp_(min=0).double()
        if self.metric.masses is not None:
            added *= self.metric.masses[missed.documents] * (n / self.metric.masses.sum())
        left = 1 - len(added) / n  # share of the documents that the sample leaves open
        return float(added.mean() + STANDARD_ERRORS * (added.var(correction=0) * left / len(added)).sqrt())

    def descend(self, mask: Tensor, fall: float) -> None:
        """Move the levels."""
        graph = self.graph

        def of_part(part: slice) -> Tensor:
            return (graph.take(mask, part) * (graph.similarity[:, part] > self.level[part])).sum(0)

        covered = graph.by_part(of_part)
        gradient = self.metric.weighed((1 - covered).double()) * (self.weight / len(self.level))
        # Below the last neighbour's similarity, documents outside the list would count.
        level = self.level - falling_step(gradient, fall).float()
        self.level = torch.maximum(level, self.graph.similarity[-1])


class FacilityGains:
    """Upper bounds on the gains of weighted facility location: gains only fall, so a stale one is a bound.

    Similarities are stored where they fit `DENSE_BYTES`, and otherwise computed for each evaluation.
    """

    def __init__(self, metric: Facility, weight: float) -> None:
        self.metric, self.weight = metric, weight
        self.rows = rows = metric.rows
        n, device = rows.n, rows.device
        self.best = torch.zeros(n, device=device)  # similarity of each document to its nearest selected one
        self._dense: Tensor | None = None
        if 4 * n * n <= DENSE_BYTES[device.type]:
            self._dense = torch.empty((n, n), device=device)
        self._upper = torch.empty(n, device=device)
        for part in track("blocks of similarities", list(rows.slices(256))):
            similarity = rows.dot(rows.block(part).T).T.clamp_(min=0, max=1)
            self._upper[part] = metric.weighed(similarity).mean(1) * weight
            if self._dense is not None:
                self._dense[part] = similarity

    def gains(self) -> Tensor:
        """Return an upper bound on every document's gain, (n,) float32."""
        return self._upper

    def refresh(self, documents: Tensor) -> Tensor:
        """Evaluate the gains of some documents (b,) exactly, and store them: (b,) float32."""
        gains = self.metric.weighed((self._similarity(documents) - self.best).clamp_(min=0)).mean(1) * self.weight
        self._upper[documents] = gains
        return gains

    def add(self, document: int) -> None:
        """Add a document."""
        self.best = torch.maximum(self.best, self._similarity(torch.tensor([document], device=self.best.device))[0])

    def _similarity(self, documents: Tensor) -> Tensor:
        if self._dense is not None:
            return self._dense[documents]
        return self.rows.dot(self.rows.take(documents).T).T.clamp_(min=0, max=1)
