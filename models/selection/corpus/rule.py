"""Compute the marginal gain of every document of a corpus: the tangent of the objective at what is to be selected.

A rule is saved as one safetensors file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save
from torch import Tensor

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.selection.corpus.documents import Documents, flat, made, nested, tree_of
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


FORMAT = "fineweb-mask rule 6"
"""What the file's metadata say it is."""
CHECKSUM = "checksum"
UNKNOWN = "0" * 64  # in the place of the checksum in the bytes that it is of


class RuleFileError(DataError):
    """A file holds no rule."""


class SavedRule(NamedTuple):
    """A rule, and what was noted with it."""

    rule: Rule
    notes: dict[str, Any]


def save_rule(path: Path, rule: Rule, notes: Mapping[str, Any]) -> None:
    """Write a rule, and notes on where it comes from, which JSON can hold.

    Numbers are tensors of the file; names are in its metadata, with the SHA-256 of all else.
    """
    arrays = flat(tree_of(rule))
    names = {name: array for name, array in arrays.items() if array.dtype.kind in "SU"}
    numbers = {name: np.asarray(array, order="C") for name, array in arrays.items() if name not in names}
    kinds = {name: [array.dtype.str, array.tolist()] for name, array in names.items()}
    text = json.dumps(kinds, default=bytes.decode)
    metadata = {"format": FORMAT, "names": text, "notes": json.dumps(dict(notes)), CHECKSUM: UNKNOWN}
    content = save(numbers, metadata)
    checksum = hashlib.sha256(content).hexdigest()
    path.write_bytes(content.replace(UNKNOWN.encode(), checksum.encode(), 1))


def load_rule(path: Path, device: torch.device) -> SavedRule:
    """Read a rule that `save_rule` wrote.

    Raises
    ------
    RuleFileError
        If the file cannot be read, holds none, or is not as it was written.
    """
    try:
        content = path.read_bytes()
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise RuleFileError(f"{path} cannot be read as a rule: {error}") from error
    if metadata.get("format") != FORMAT:
        raise RuleFileError(f"{path} holds no rule of this version: write one with `fineweb-mask rule export`")
    checksum = metadata.get(CHECKSUM, UNKNOWN)
    if hashlib.sha256(content.replace(checksum.encode(), UNKNOWN.encode(), 1)).hexdigest() != checksum:
        raise RuleFileError(f"{path} is damaged: copy it again, or write it with `fineweb-mask rule export`")
    arrays = load(content)
    for name, (kind, values) in json.loads(metadata["names"]).items():
        arrays[name] = np.array(values, dtype=np.str_).astype(np.dtype(kind)) if values else np.empty(0, dtype=kind)
    return SavedRule(made(Rule, nested(arrays), device), json.loads(metadata["notes"]))
