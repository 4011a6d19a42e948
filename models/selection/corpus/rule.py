"""Compute the marginal gain of every document of a corpus: the tangent of the objective at what is to be selected."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.metrics.kernel import KernelMetric, kernel_metric_class
from fineweb_mask.models.selection.rows import Rows, Standard


@dataclass(frozen=True, eq=False)
class Frame:
    """In what coordinates the metrics measure documents, the same for all parts of a corpus."""

    standard: Standard
    directions: Mapping[str, Tensor | None]  # metric -> those in which it measures rows, see `KernelMetric.fit`
    mean_tokens: float | None = None  # with a budget of tokens: what a document's mass of 1 is

    def masses(self, documents: Documents, device: torch.device) -> Tensor | None:
        """Return what documents weigh in the means of the objective, (n,) float32; None if all weigh the same."""
        if self.mean_tokens is None or documents.tokens is None:
            return None
        return torch.as_tensor(documents.tokens / self.mean_tokens, dtype=torch.float32, device=device)

    def metrics(self, documents: Documents, rows: Rows) -> dict[str, KernelMetric]:
        """Make the metrics of documents, whose unit rows are given."""
        masses = self.masses(documents, rows.device)
        return {
            name: kernel_metric_class(name)(rows, masses, self.standard, directions)
            for name, directions in self.directions.items()
        }


READABLE = 0.25  # temperature of the inclusion, in standard deviations of the marginal gains


class CorpusObjective(NamedTuple):
    """J = linear_weight * mean quality + sum of weights * metrics + constant, for selections of one size."""

    linear_weight: float
    weights: Mapping[str, float]  # by which the metrics' raw values enter J
    constant: float
    size: float  # documents, or mass, of a full selection: all denominators
    longest: float  # largest mass of a document

    def value(self, raw: Mapping[str, float]) -> float:
        """Compute J from "mean_quality" and every metric's value."""
        diversity = sum(weight * raw[name] for name, weight in self.weights.items())
        return self.linear_weight * raw["mean_quality"] + diversity + self.constant


class Place(NamedTuple):
    """A place in the order of documents: by marginal gain, the higher first, and then by tie, the lower first."""

    worth: float  # marginal gain, by tokens per token
    tie: float

    def admits(self, worth: NDArray[np.float32], ties: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which documents, (n,), are at this place or before it."""
        level = np.float32(self.worth)
        found: NDArray[np.bool_] = (worth > level) | ((worth == level) & (ties <= self.tie))
        return found


FIRST, LAST = Place(float("inf"), 0.0), Place(float("-inf"), 1.0)


class Measured(NamedTuple):
    """Documents as a rule sees them."""

    metrics: dict[str, KernelMetric]
    masses: Tensor | None  # (n,) float32
    gains: Tensor  # (n,) float32, what each adds to J, less its penalty
    worth: NDArray[np.float32]  # (n,): the gain, or the gain per token


@dataclass(frozen=True, eq=False)
class Rule:
    """The tangent of an objective at moments: height + sum of gains is at least J, and J at these moments."""

    frame: Frame
    objective: CorpusObjective
    moments: Mapping[str, Tensor]  # by metric
    height: float
    spread: float  # standard deviation of the marginal gains
    threshold: Place = LAST  # the last selected place

    def measure(self, documents: Documents, device: torch.device) -> Measured:
        """Compute the marginal gains of documents."""
        metrics = self.frame.metrics(documents, checked_features(documents.vectors, device))
        masses = self.frame.masses(documents, device)
        return self.measure_with(metrics, documents, masses)

    def measure_with(self, metrics: dict[str, KernelMetric], documents: Documents, masses: Tensor | None) -> "Measured":
        """Compute the marginal gains of documents, with metrics that are made."""
        worth = documents.worth
        if worth is None:
            gains = linear_gains(self.objective, documents, metrics, masses)
            for name, metric in metrics.items():
                moment = self.moments[name].to(gains.device)
                gains += metric.gradient_at(moment, self.objective.size, self.objective.weights[name])
            worth = (gains if masses is None else gains / masses).cpu().numpy()
        if documents.charges is not None:
            worth = worth - documents.charges
        if documents.worth is not None or documents.charges is not None:
            gains = torch.as_tensor(worth, device=metrics_device(metrics))
            gains = gains if masses is None else gains * masses
        return Measured(metrics, masses, gains, worth)

    def select(self, documents: Documents, device: torch.device) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which documents the rule selects, (n,), and the inclusion of each, (n,): one half at the threshold."""
        return self.judge(documents._replace(worth=self.measure(documents, device).worth, charges=None))

    def judge(self, documents: Documents) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return the same of documents whose marginal gains are known; their vectors are not read."""
        worth = documents.worth
        assert worth is not None  # noqa: S101 - see above
        if documents.charges is not None:
            worth = worth - documents.charges
        distance = (worth.astype(np.float64) - self.threshold.worth) / (READABLE * self.spread or 1.0)
        inclusion = (1 / (1 + np.exp(-distance.clip(-80, 80)))).astype(np.float32)
        return self.threshold.admits(worth, documents.ties), inclusion


def metrics_device(metrics: Mapping[str, KernelMetric]) -> torch.device:
    """Return where metrics compute."""
    return next(iter(metrics.values())).rows.device if metrics else torch.device("cpu")


def linear_gains(
    objective: CorpusObjective, documents: Documents, metrics: Mapping[str, KernelMetric], masses: Tensor | None
) -> Tensor:
    """Compute what documents add to J through their quality and what else does not depend on others: (n,) float32."""
    device = metrics_device(metrics)
    gains = torch.as_tensor(documents.quality, device=device) * (objective.linear_weight / objective.size)
    if masses is None:
        return gains
    gains *= masses
    for name, metric in metrics.items():
        if metric.credit is not None:
            gains += metric.credit * (objective.weights[name] / objective.size**2)
    return gains
