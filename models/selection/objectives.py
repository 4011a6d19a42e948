"""What a selection maximises: J(m) = lamb * Q(m) + (1 - lamb) * D(m), and the diversity metrics D.

A metric is a class with `value(masks)`; one that also has `gradient(inclusion)` can be solved in closed form.
The metrics here add what the certificate needs: a concave function that equals the metric on every mask.
`METRICS` names them; a new one is a class and an entry there.

Source: DATAMASK, arXiv 2512.24265, for the three metrics. The closed-form gradients, the standardising of
`disf` by the whole block and the normalising by range are ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from models.selection.neighbours import Neighbours, nearest
from models.selection.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

PCA_ROWS = 8192  # rows from which the principal directions are taken


@runtime_checkable
class Metric(Protocol):
    """What every diversity metric offers, a user's own included; larger is more diverse."""

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,)."""
        ...


@runtime_checkable
class DifferentiableMetric(Metric, Protocol):
    """A metric that can be solved in closed form."""

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate the expected value by the inclusion probabilities, (n,): (n,)."""
        ...


def selected(masks: Tensor) -> tuple[Tensor, ...]:
    """List the selected documents of every mask of a group, (G, n) bool, with one transfer for the group."""
    counts = masks.sum(1).tolist()
    return torch.split(masks.nonzero()[:, 1], counts)


class BuiltInMetric(ABC):
    """A metric with a gradient, a concave relaxation, its value on a random subset, and a view of a batch."""

    name: str

    @abstractmethod
    def __init__(self, rows: Rows) -> None: ...

    @abstractmethod
    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,) float64."""

    @abstractmethod
    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate the expected value under independent inclusion (n,): (n,) float32.

        The size of the selection, sum of `inclusion`, counts as a constant.
        """

    @abstractmethod
    def relaxed(self, inclusion: Tensor) -> tuple[float, Tensor]:
        """Give a concave h >= D (equal on masks of the same size) and a supergradient (n,) float64."""

    @abstractmethod
    def worth(self, mask: Tensor) -> Tensor:
        """Say what each document is worth to a selection, (n,) bool: (n,) float32.

        For an unselected document what adding it alone would gain, for a selected one what dropping it alone
        would lose, with the size of the selection counted as a constant.
        """

    @abstractmethod
    def random_value(self, budget: int) -> float:
        """Give the value expected of a uniform random subset of `budget` documents."""

    @abstractmethod
    def restrict(self, index: Tensor) -> BuiltInMetric:
        """Give the same metric over a batch of documents, index (b,)."""


class KernelMetric(BuiltInMetric):
    """A metric that sees the selection only through v = sum_ij m_i m_j kernel(i, j).

    The sum is a squared norm of a small moment: of s (d numbers) for `pairwise`, of C (d x d) for `disf`.
    D is a concave, falling function of the moment.
    """

    rows: Rows
    diagonal: Tensor  # (n,) float32, kernel(i, i)
    matrix: Tensor | None = None  # (n, n) float32, kernel(i, j), where several solves share it

    @abstractmethod
    def moment(self, weights: Tensor) -> Tensor:
        """Sum the documents' feature maps under weights or of a mask, (n,): float64."""

    @abstractmethod
    def scores(self, moment: Tensor) -> Tensor:
        """Sum kernel(i, j) w_j over j from the moment of w: (n,) float32."""

    @abstractmethod
    def kernel(self, left: Tensor, right: Tensor) -> Tensor:
        """Evaluate the kernel between rows (a, d) and (b, d): (a, b) float32."""

    @abstractmethod
    def kernel_with(self, row: Tensor) -> Tensor:
        """Evaluate the kernel between all documents and one row (d,): (n,) float32."""

    @abstractmethod
    def moment_of(self, features: Tensor, weights: Tensor) -> Tensor:
        """Sum the feature maps of given rows (a, d) under weights (a,): float64."""

    @abstractmethod
    def scores_of(self, features: Tensor, moment: Tensor) -> Tensor:
        """Give the scores of given rows (a, d): (a,) float32."""

    @abstractmethod
    def outer(self, v: Tensor, budget: float | Tensor) -> Tensor:
        """Give D from v, for a selection of `budget` documents."""

    @abstractmethod
    def slope(self, v: float, budget: float) -> float:
        """Give -dD/dv, at least 0."""

    @abstractmethod
    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """Differentiate D's tangent at a moment, evaluated at a reached one, by the former: its shape."""

    def relaxed(self, inclusion: Tensor) -> tuple[float, Tensor]:
        """See the base class: D as a function of the moment is concave in the inclusion."""
        moment = self.moment(inclusion)
        v = moment.square().sum()
        budget = float(inclusion.sum(dtype=torch.float64))
        gradient = self.scores(moment).double().mul_(-2 * self.slope(float(v), budget))
        return float(self.outer(v, budget)), gradient

    def worth(self, mask: Tensor) -> Tensor:
        """See the base class; through the tangent of D at the present v."""
        moment = self.moment(mask)
        slope = self.slope(float(moment.square().sum()), float(mask.sum()))
        own = torch.where(mask, self.diagonal, -self.diagonal)
        return (2 * self.scores(moment)).sub_(own).mul_(-slope)

    def random_value(self, budget: int) -> float:
        """Give D at the expected v of a uniform random subset."""
        n = self.rows.n
        own = float(self.diagonal.sum(dtype=torch.float64))
        everyone = self.moment(torch.ones(n, device=self.rows.device))
        pairs = (float(everyone.square().sum()) - own) / max(n * (n - 1), 1)
        v = budget * own / n + budget * (budget - 1) * pairs
        return float(self.outer(torch.tensor(max(v, 0.0), dtype=torch.float64), budget))

    def hold_matrix(self) -> None:
        """Evaluate the kernel between all documents once, for every greedy pick from now on: 4 n^2 bytes."""
        if self.matrix is None:
            everyone = self.rows.block(slice(None))
            self.matrix = self.kernel(everyone, everyone)

    def _batch(self, index: Tensor) -> KernelMetric:
        batch = object.__new__(type(self))
        batch.rows = Rows(self.rows.take(index))
        batch.diagonal = self.diagonal[index]
        return batch


class Pairwise(KernelMetric):
    """Minus the mean cosine over ordered pairs of selected documents (paper: Pair_simi).

    D = -(||sum_i m_i x_i||^2 - K) / (K (K - 1)) for unit rows; a selection of one has no pairs and D = 0.
    """

    name = "pairwise"

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.diagonal = torch.ones(rows.n, device=rows.device)

    def value(self, masks: Tensor) -> Tensor:
        """See the base class: one matrix product for the whole group."""
        sums = self.rows.weighted_sum(masks) if len(masks) > 1 else self.rows.weighted_sum(masks[0])[None]
        return self.outer(sums.square().sum(1), masks.sum(1, dtype=torch.float64))

    def gradient(self, inclusion: Tensor) -> Tensor:
        """See the base class: -2 (<x_i, s> - pi_i) / (K (K - 1))."""
        budget = float(inclusion.sum(dtype=torch.float64))
        others = self.scores(self.moment(inclusion)) - inclusion
        return others.mul_(-2 * self.slope(0.0, budget))

    def restrict(self, index: Tensor) -> KernelMetric:
        """See the base class."""
        return self._batch(index)

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the rows: (d,)."""
        return self.rows.weighted_sum(weights)

    def scores(self, moment: Tensor) -> Tensor:
        """Give <x_i, s>."""
        return self.rows.dot(moment.float())

    def moment_of(self, features: Tensor, weights: Tensor) -> Tensor:
        """See the base class."""
        return (weights @ features).double()

    def scores_of(self, features: Tensor, moment: Tensor) -> Tensor:
        """See the base class."""
        return features @ moment.float()

    def kernel(self, left: Tensor, right: Tensor) -> Tensor:
        """Give the cosines."""
        return left @ right.T

    def kernel_with(self, row: Tensor) -> Tensor:
        """See the base class."""
        return self.rows.dot(row)

    def outer(self, v: Tensor, budget: float | Tensor) -> Tensor:
        """Take the K own similarities out and average over the pairs."""
        size = torch.as_tensor(budget, dtype=torch.float64, device=v.device)
        pairs = size * (size - 1)
        return torch.where(size > 1, (size - v) / pairs.clamp(min=1), 0.0)

    def slope(self, v: float, budget: float) -> float:  # noqa: ARG002 - linear in v
        """Give 1 / (K (K - 1))."""
        return 1 / (budget * (budget - 1)) if budget > 1 else 0.0

    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """See the base class."""
        return (moment - reached) * (2 * self.slope(0.0, budget))


class Disf(KernelMetric):
    """Minus the Frobenius norm of the selection's second moment (paper: DiSF).

    D = -||C||_F with C = sum_i m_i z_i z_i^T / (K - 1), z standardised once by the block's mean and deviation
    (ours: that makes D concave). A selection of one divides by 1.
    """

    name = "disf"

    def __init__(self, rows: Rows) -> None:
        self.rows = rows.standardised()
        self.diagonal = torch.cat([self.rows.block(part).square().sum(1).square() for part in self.rows.slices()])

    def value(self, masks: Tensor) -> Tensor:
        """See the base class: per mask the smaller of Z^T Z (d x d) and Z Z^T (K x K)."""
        squares = []
        for chosen in selected(masks):
            z = self.rows.take(chosen)
            gram = z @ z.T if len(z) < self.rows.d else z.T @ z
            squares.append(torch.linalg.vector_norm(gram, dtype=torch.float64).square())
        return self.outer(torch.stack(squares), masks.sum(1, dtype=torch.float64))

    def gradient(self, inclusion: Tensor) -> Tensor:
        """See the base class: -(z_i^T C z_i) / ((K - 1) ||C||_F)."""
        return self.relaxed(inclusion)[1].float()

    def restrict(self, index: Tensor) -> KernelMetric:
        """See the base class: the batch keeps the block's standardising."""
        return self._batch(index)

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the outer products: (d, d)."""
        return self.rows.second_moment(weights)

    def scores(self, moment: Tensor) -> Tensor:
        """Give z_i^T M z_i."""
        return self.rows.quadratic(moment)

    def moment_of(self, features: Tensor, weights: Tensor) -> Tensor:
        """See the base class."""
        return (features.T @ (features * weights[:, None])).double()

    def scores_of(self, features: Tensor, moment: Tensor) -> Tensor:
        """See the base class."""
        return (features @ moment.float()).mul_(features).sum(1)

    def kernel(self, left: Tensor, right: Tensor) -> Tensor:
        """Give the squared inner products."""
        return (left @ right.T).square_()

    def kernel_with(self, row: Tensor) -> Tensor:
        """See the base class."""
        return self.rows.dot(row).square_()

    def outer(self, v: Tensor, budget: float | Tensor) -> Tensor:
        """Scale the norm of the sum to that of C."""
        divisor = torch.as_tensor(budget - 1, dtype=torch.float64, device=v.device).clamp(min=1)
        return -v.sqrt() / divisor

    def slope(self, v: float, budget: float) -> float:
        """Give 1 / (2 (K - 1) sqrt(v))."""
        return float(1 / (2 * max(budget - 1, 1) * v**0.5)) if v > 0 else 0.0

    def reduced(self, n_directions: int, generator: torch.Generator) -> Disf:
        """Approximate the metric in the principal directions, so that passes cost n_directions^2, not d^2.

        The other directions are taken together as one of equal variances: that is exact for their share of
        ||C||_F if the selection's moment is isotropic there. A random sign keeps it apart from the rest.
        """
        sample = torch.zeros(self.rows.n, device=self.rows.device)
        sample[torch.randperm(self.rows.n, generator=generator, device=sample.device)[:PCA_ROWS]] = 1.0
        vectors = torch.linalg.eigh(self.rows.second_moment(sample)).eigenvectors.float()
        kept = self.rows.dot(vectors[:, -(n_directions - 1) :].contiguous())
        rest = (self.diagonal.sqrt() - kept.square().sum(1)).clamp_(min=0)
        others = rest.sqrt() / (self.rows.d - n_directions + 1) ** 0.25
        sign = torch.randint(0, 2, others.shape, generator=generator, device=others.device) * 2 - 1
        metric = object.__new__(Disf)
        metric.rows = Rows(torch.cat([kept, (others * sign)[:, None]], dim=1))
        metric.diagonal = metric.rows.block(slice(None)).square().sum(1).square()
        return metric

    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """See the base class; the tangent depends on the moment's direction only."""
        v = moment.square().sum()
        across = reached - moment * ((moment * reached).sum() / v.clamp(min=1e-300))
        return across * (-2 * self.slope(float(v), budget))


def disf_by_selection(rows: Rows, mask: Tensor) -> float:
    """Evaluate DiSF as its published code does, standardising by the selected documents themselves.

    For comparison only: its standardising depends on the selection, so it has no concave relaxation.
    Gives minus the Frobenius norm of the correlation matrix of the rows of a mask (n,).
    """
    z = Rows(rows.take(mask.nonzero()[:, 0])).standardised().block(slice(None))
    gram = z @ z.T if len(z) < rows.d else z.T @ z
    return -float(torch.linalg.vector_norm(gram, dtype=torch.float64)) / max(len(z) - 1, 1)


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
            parts = [
                (self.rows.take(part) @ columns).amax(1)
                for part in torch.split(documents, min(rows_at_once, self.rows.block_rows))
            ]
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


METRICS: dict[str, type[BuiltInMetric]] = {kind.name: kind for kind in (Pairwise, Disf, Facility)}


class Objective:
    """J = linear . m + sum of weights * metrics + constant, for selections of one size.

    Parameters
    ----------
    quality
        (n,) float32.
    budget
        Documents to select, K.
    metrics
        Metrics by name.
    linear_weight
        Weight of the mean quality Q.
    weights
        Weight of each metric's raw value.
    constant
        What `normalize` takes off.
    """

    def __init__(
        self,
        quality: Tensor,  # (n,)
        budget: int,
        metrics: Mapping[str, Metric],
        *,
        linear_weight: float,
        weights: Mapping[str, float],
        constant: float = 0.0,
    ) -> None:
        self.quality, self.budget, self.metrics = quality, budget, dict(metrics)
        self.linear_weight, self.weights, self.constant = linear_weight, dict(weights), constant

    @property
    def n(self) -> int:
        """Documents in the block."""
        return len(self.quality)

    @property
    def active(self) -> dict[str, Metric]:
        """The metrics that count."""
        return {name: metric for name, metric in self.metrics.items() if self.weights[name]}

    @property
    def linear(self) -> Tensor:
        """What selecting a document adds through its quality: (n,) float32."""
        return self.quality * (self.linear_weight / self.budget)

    def restrict(self, index: Tensor) -> Objective:
        """Give the same objective for selections among some documents, index (b,); built-in metrics only."""
        metrics = {
            name: metric.restrict(index)
            for name, metric in self.metrics.items()
            if self.weights[name] and isinstance(metric, BuiltInMetric)
        }
        return Objective(
            self.quality[index],
            self.budget,
            metrics,
            linear_weight=self.linear_weight,
            weights=self.weights,
            constant=self.constant,
        )

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,) float64."""
        counts = masks.sum(1, dtype=torch.float64)
        if len(masks) == 1:
            quality = self.quality[masks[0]].sum(dtype=torch.float64)[None]
        else:
            quality = (masks.float() @ self.quality).double()
        total = quality / counts * self.linear_weight + self.constant
        for name, metric in self.metrics.items():
            if self.weights[name]:
                total = total + metric.value(masks).to(total) * self.weights[name]
        return total

    def value_of(self, mask: Tensor) -> float:
        """Evaluate one mask, (n,) bool."""
        return float(self.value(mask[None])[0])

    def worth(self, mask: Tensor) -> Tensor:
        """Say what adding an unselected and what dropping a selected document is worth: (n,) float32."""
        worth = self.linear.clone()
        for name, metric in self.metrics.items():
            if not self.weights[name]:
                continue
            if isinstance(metric, BuiltInMetric):
                worth += self.weights[name] * metric.worth(mask)
            elif isinstance(metric, DifferentiableMetric):
                worth += self.weights[name] * metric.gradient(mask.float()).float()
        return worth
