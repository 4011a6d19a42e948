"""`cluster_coverage`: how evenly the selection covers k-means clusters; each further document of one counts less."""

from collections.abc import Callable

import torch
from torch import Tensor

from fineweb_mask.models.selection.k_means import Tree
from fineweb_mask.models.selection.metrics.base import SwapModel
from fineweb_mask.models.selection.metrics.kernel import Fitted, MomentMetric, MomentTangent, falling_step
from fineweb_mask.models.selection.rows import Rows, Standard
from fineweb_mask.models.settings.selection import CLUSTERS

PER_CLUSTER = 5  # documents on average: of a block, or of those that are selected from a sample, which tell its share
FITTED_ROWS, MOVES = 32, 4  # rows of the sample for each cluster, and rounds of k-means
EVENNESS = 0.5  # from 0, clusters as they are in the corpus, to 1, all alike
SMOOTH = 0.01  # added under the root, so that the first document of a cluster adds a finite amount
NO_SHARE = 1e-12  # of a cluster without a document


class ClusterCoverage(MomentMetric):
    """Coverage of k-means clusters, each by the root of its share of the selection (ours).

    D = sum over clusters c of p_c f(x_c / p_c), f(r) = sqrt(r + 0.01) - sqrt(0.01): x_c is the cluster's share of the
    selected documents, or with masses of their mass, and p_c, which add up to 1, are in proportion to the root of its
    share of all documents. D is highest where x = p, and concave: the second document of a cluster adds less than the
    first, as with `facility`, but no lists of neighbours are read, and x are sums over the parts of a corpus.

    In a block there is a cluster for every five documents, and over a corpus for every five that are selected from
    the sample; at most 4,096. Rows are centred before they are clustered.
    """

    is_steep = True
    swap_pool = 2048
    swaps_as_promised = False  # the model is exact for one swap, and several may be of one cluster

    def __init__(
        self,
        rows: Rows,
        masses: Tensor | None = None,
        standard: Standard | None = None,
        fitted: Fitted | None = None,
    ) -> None:
        self.rows, self.masses = rows, masses
        if fitted is None:
            generator = torch.Generator().manual_seed(0)
            fitted = self.fit(rows, masses, standard, selected=rows.n, directions=0, generator=generator)
        assert fitted.shares is not None and fitted.groups is not None  # noqa: S101, PT018 - as `fit` returns them
        self.shares = fitted.shares
        self.labels = Tree(fitted.directions.T, fitted.groups).nearest(_centred(rows, standard))

    @classmethod
    def fit(
        cls,
        rows: Rows,
        masses: Tensor | None,
        standard: Standard | None,
        *,
        selected: float,
        directions: int,  # noqa: ARG003 - for others
        generator: torch.Generator,
    ) -> Fitted:
        """Cluster the rows, and count the documents, or their masses, of every cluster."""
        clusters = max(1, min(round(selected / PER_CLUSTER), CLUSTERS))
        rows = _centred(rows, standard)
        sample = torch.randperm(rows.n, generator=generator).to(rows.device)[: FITTED_ROWS * clusters]
        tree = Tree.fit(rows.only(sample.sort().values), clusters, MOVES, generator)
        weights = torch.ones(rows.n, device=rows.device) if masses is None else masses
        held = torch.bincount(tree.nearest(rows), weights=weights.double(), minlength=len(tree.groups))
        shares = (held / held.sum()) ** (1 - EVENNESS)
        return Fitted(tree.centres.T.contiguous(), (shares / shares.sum()).clamp(min=NO_SHARE), tree.groups)

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        return torch.stack([self.of_moment(self.moment(mask), float(self.size(mask))) for mask in masks])

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the documents, or their masses, of each cluster under weights (n,): (C,) float64."""
        return torch.zeros_like(self.shares).index_add_(0, self.labels, self.masses_under(weights))

    def masses_under(self, weights: Tensor) -> Tensor:
        """Multiply the documents' masses, or 1 each, with weights (n,): (n,) float64."""
        return weights.double() if self.masses is None else weights.double() * self.masses

    def of_moment(self, moment: Tensor, budget: float) -> Tensor:
        """Compute D; below 0, where a correction may lead, f is its tangent at 0."""
        return self.covered(moment, self.shares, budget).sum()

    def covered(self, mass: Tensor, shares: Tensor, budget: float) -> Tensor:
        """Compute what clusters of shares p add to D with a mass of selected documents, of one shape."""
        ratio = mass / (budget * shares)
        added: Tensor = (ratio.clamp(min=0) + SMOOTH).sqrt() - SMOOTH**0.5 + ratio.clamp(max=0) * (0.5 / SMOOTH**0.5)
        return added.mul_(shares)

    def slopes(self, moment: Tensor, budget: float) -> Tensor:
        """Differentiate F with respect to the moment: (C,) float64."""
        return 0.5 / budget * ((moment / (budget * self.shares)).clamp(min=0) + SMOOTH).rsqrt()

    def gradient_at(self, moment: Tensor, budget: float, weight: float = 1.0) -> Tensor:
        """Return the slope of each document's cluster, by its mass: (n,) float32."""
        return self.masses_under(weight * self.slopes(moment, budget)[self.labels]).float()

    def along(self, moment: Tensor, way: Tensor, budget: float) -> Callable[[float], float]:
        """Differentiate D along the way."""
        return lambda share: float((self.slopes(moment + share * way, budget) * way).sum())

    def height(self, moment: Tensor, budget: float) -> float:
        """Compute the constant of the tangent at a moment."""
        return float(self.of_moment(moment, budget) - (self.slopes(moment, budget) * moment).sum())

    def tangent(self, inclusion: Tensor, budget: float, weight: float) -> "CoverageTangent":
        """Return the tangent of weight * D at the moment of the inclusion probabilities (n,)."""
        return CoverageTangent(self, self.moment(inclusion), budget, weight)

    def gains(self, budget: float, weight: float) -> "CoverageGains":
        """Return the marginal gains of weight * D, for an empty selection."""
        return CoverageGains(self, budget, weight)

    def changes(self, moment: Tensor, steps: Tensor, budget: float) -> Tensor:
        """Compute what D changes by where the mass of a document's cluster does, by steps (n,): (n,) float64."""
        mass, shares = moment[self.labels], self.shares[self.labels]
        return self.covered(mass + steps, shares, budget) - self.covered(mass, shares, budget)

    def spread(self, others: Tensor, budget: float, weight: float) -> Tensor:
        """Return each document's gain where those of its cluster that gain more by `others` are selected: (n,) float64.

        Documents of a cluster gain the same by D, so that the top K by its gradient are whole clusters. What the next
        one of a cluster adds falls with their number, as `others` does, so that the top K by their sum are the best.
        """
        order = others.sort(descending=True, stable=True).indices
        order = order[self.labels[order].sort(stable=True).indices]
        labels, masses = self.labels[order], self.masses_under(torch.ones_like(others))[order]
        before = masses.cumsum(0) - masses
        starts = torch.bincount(labels, minlength=len(self.shares)).cumsum(0).roll(1)
        starts[0] = 0
        before -= before[starts.clamp(max=len(order) - 1)][labels]
        shares = self.shares[labels]
        added = self.covered(before + masses, shares, budget) - self.covered(before, shares, budget)
        gains = others.double()
        gains[order] += weight * added
        return gains

    def marginal_gains(self, mask: Tensor) -> Tensor:
        """Compute the gain from adding each document, or the loss from dropping it, for a mask (n,): (n,) float32."""
        signs = 1 - 2 * mask.double()
        return (signs * self.changes(self.moment(mask), self.masses_under(signs), float(self.size(mask)))).float()

    def swap_model(self, mask: Tensor, weight: float) -> SwapModel:
        """Describe swaps exactly: two documents of one cluster share its second difference."""
        moment, budget = self.moment(mask), float(self.size(mask))
        steps = self.masses_under(1 - 2 * mask.double())

        def cross(pool: Tensor) -> Tensor:
            labels, own = self.labels[pool], steps[pool]
            first, second = (labels[:, None] == labels).nonzero(as_tuple=True)
            mass, shares = moment[labels[first]], self.shares[labels[first]]
            one, other = own[first], own[second]
            plain, either, both = (
                self.covered(mass + step, shares, budget) for step in (torch.zeros_like(one), one, one + other)
            )
            difference = both - either - self.covered(mass + other, shares, budget) + plain
            found = torch.zeros((len(pool), len(pool)), device=pool.device)
            found[first, second] = (-weight * torch.sign(one * other) * difference).float()
            return found

        return SwapModel(self.marginal_gains(mask) * weight, cross)

    def restrict(self, index: Tensor) -> "ClusterCoverage":
        """Return the metric over a batch (b,), with the clusters as they are."""
        batch = object.__new__(ClusterCoverage)
        batch.rows, batch.shares, batch.labels = Rows(self.rows.take(index)), self.shares, self.labels[index]
        batch.masses = None if self.masses is None else self.masses[index]
        return batch


class CoverageTangent(MomentTangent[ClusterCoverage]):
    """The tangent of weighted coverage, which is moved by its slopes: the bound is convex in these.

    A selection of documents has a whole number of each cluster, so that the line needs to be above D there only.
    """

    def whole(self, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Find the mass of each cluster at which D is highest above lines of these slopes, and how high: (C,) each."""
        metric, places = self.metric, [self.moment]
        if metric.masses is None:
            most = torch.bincount(metric.labels, minlength=len(slopes))
            places = [torch.minimum(place, most.double()) for place in (self.moment.floor(), self.moment.ceil())]
        above = torch.stack([metric.covered(place, metric.shares, self.budget) - slopes * place for place in places])
        height, index = above.max(0)
        return torch.stack(places).gather(0, index[None])[0], height

    def evaluate(self) -> tuple[float, Tensor]:
        """Return the height and the slope of every document, (n,) float64."""
        _, height = self.whole(self.metric.slopes(self.moment, self.budget))
        return self.weight * float(height.sum()), super().evaluate()[1]

    def descend(self, mask: Tensor, fall: float) -> None:
        """Move the slopes, to those of another moment that is not below 0."""
        metric, budget = self.metric, self.budget
        slopes = metric.slopes(self.moment, budget)
        slopes = slopes - falling_step(self.weight * (metric.moment(mask) - self.whole(slopes)[0]), fall)
        full = 1 / metric.shares  # all mass in one cluster
        ratio = (2 * budget * slopes).clamp(min=0).square().reciprocal().clamp(SMOOTH) - SMOOTH
        self.moment = torch.minimum(ratio, full) * (budget * metric.shares)


class CoverageGains:
    """The gains of weighted coverage, from the selected mass of each cluster."""

    def __init__(self, metric: ClusterCoverage, budget: float, weight: float) -> None:
        self.metric, self.budget, self.weight = metric, budget, weight
        self._masses = metric.masses_under(torch.ones(metric.rows.n, device=metric.rows.device))
        self._moment = torch.zeros_like(metric.shares)

    def gains(self) -> Tensor:
        """Return every document's gain, (n,) float32."""
        return (self.metric.changes(self._moment, self._masses, self.budget) * self.weight).float()

    def add(self, document: int) -> None:
        """Add a document."""
        self._moment[self.metric.labels[document]] += self._masses[document]


def _centred(rows: Rows, standard: Standard | None) -> Rows:
    """Subtract the mean of all documents from every row, and scale it to length 1."""
    centre, inverse = standard or rows.standard()
    alike = torch.ones_like(inverse)
    return rows.standardised(Standard(centre, alike)).times(torch.full((rows.n,), rows.d**-0.5, device=rows.device))
