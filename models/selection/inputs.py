"""Check the inputs of a selection before any work: errors name the column, the first bad row and the remedy."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.selection.rows import Rows

CHECK_ROWS = 16_384  # rows read at once
UNIT = 1e-6  # a float32 row of a norm this close to 1 is not rescaled
SMALLEST_NORM = 1e-15  # squares of a shorter float32 row have too few digits left
LARGEST = 1e30  # number of a document: sums over a billion documents stay finite in float64


class SelectionInputError(DataError):
    """An input that cannot be selected from; the message names column, row and remedy."""


class Targets(NamedTuple):
    """Examples of target tasks, embedded by the encoder that embedded the documents."""

    vectors: Any  # (t, d) float32, unit length
    tasks: Any  # (t,) int64, each example's task, from 0


@dataclass(frozen=True, eq=False)
class SelectorInputs:
    """What some selectors also read of n documents, next to vectors and quality; numpy or torch.

    >>> SelectorInputs(scores={"edu": np.array([2.5, 1.0])}).scores["edu"].tolist()
    [2.5, 1.0]
    """

    scores: Mapping[str, Any] = field(default_factory=dict)  # (n,) each, by the scorer's name
    groups: Any = None  # (n,) labels
    targets: Targets | None = None
    log_weights: Any = None  # (n,) log importance weights; minus infinity: selected last

    def take(self, rows: NDArray[np.int64]) -> "SelectorInputs":
        """Return those of some of the documents, by position (b,)."""
        return replace(
            self,
            scores={name: column[rows] for name, column in self.scores.items()},
            groups=None if self.groups is None else self.groups[rows],
            log_weights=None if self.log_weights is None else self.log_weights[rows],
        )

    def checked(self, n: int, d: int, device: torch.device) -> "SelectorInputs":
        """Return them as tensors on a device, groups as texts.

        Raises
        ------
        SelectionInputError
            If one has another length than the documents, or holds NaN.
        """
        scores = {name: checked_column(column, f"scores {name!r}", n, device) for name, column in self.scores.items()}
        groups = None if self.groups is None else np.asarray(self.groups).astype(str)
        if groups is not None and groups.shape != (n,):
            raise SelectionInputError(
                f"groups must have one label per row of features ({n}), received shape {groups.shape}"
            )
        log_weights = self.log_weights
        if log_weights is not None:
            log_weights = checked_column(log_weights, "log_weights", n, device, least=-torch.inf)
        targets = _checked_targets(self.targets, d, device)
        return replace(self, scores=scores, groups=groups, targets=targets, log_weights=log_weights)


def _checked_targets(targets: Targets | None, d: int, device: torch.device) -> Targets | None:
    if targets is None:
        return None
    vectors, tasks = as_tensor(targets.vectors, "targets", device).float(), torch.as_tensor(targets.tasks).to(device)
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != d or tasks.shape != (len(vectors),):
        raise SelectionInputError(
            f"targets must be vectors (examples, {d}) with a task for each, received shapes {tuple(vectors.shape)} "
            f"and {tuple(tasks.shape)}: embed them with the encoder of the documents"
        )
    is_bad = ~torch.isfinite(vectors).all(1) | (vectors == 0).all(1)
    _reject_first(
        is_bad, "targets", "holds NaN or an infinite value, or is zero", "embed that example again or drop it"
    )
    return Targets(torch.nn.functional.normalize(vectors, dim=1), tasks.long())


def as_tensor(
    values: Any,  # noqa: ANN401 - numpy, torch or anything that numpy reads
    column: str,
    device: torch.device,
) -> Tensor:
    """Copy an array to the device if needed; float16 and float32 keep their dtype, all others become float32."""
    if not isinstance(values, torch.Tensor):
        array = np.asarray(values)
        if array.dtype == object and array.ndim == 1 and len(array):  # a column of vectors of pandas or Arrow
            try:
                array = np.stack(list(array))
            except ValueError as error:
                raise SelectionInputError(
                    f"{column}: every document needs a vector of equal length: {error}"
                ) from error
        if array.dtype.kind not in "fiu":
            raise SelectionInputError(
                f"{column} must hold numbers, received dtype {array.dtype}: convert the column to float32"
            )
        if array.dtype not in (np.float16, np.float32):
            with np.errstate(over="ignore"):  # an overflow becomes infinite and is reported later
                array = array.astype(np.float32)
        with warnings.catch_warnings():
            # Arrow returns read-only arrays; nothing here writes to them, and a copy could be gigabytes.
            warnings.simplefilter("ignore", UserWarning)
            values = torch.from_numpy(np.ascontiguousarray(array))
    elif values.dtype not in (torch.float16, torch.float32):
        values = values.to(torch.float32)
    tensor: Tensor = values
    return tensor.detach().to(device)


def checked_features(values: Any, device: torch.device) -> Rows:  # noqa: ANN401 - see as_tensor
    """Check features (n, d) and return them as unit rows; raise SelectionInputError for a bad shape or row."""
    stored = as_tensor(values, "features", device)
    if stored.ndim != 2 or 0 in stored.shape:
        raise SelectionInputError(
            "features must have shape (documents, dimensions) with at least one of each, "
            f"received {tuple(stored.shape)}"
        )
    parts = torch.split(stored, CHECK_ROWS)
    norms = torch.cat([torch.linalg.vector_norm(part.float(), dim=1) for part in parts]).double()
    _reject_first(
        ~torch.isfinite(norms),
        "features",
        "holds NaN, an infinite value or one beyond 1e18",
        "embed that document again or drop it (float16 overflows above 65504)",
    )
    _reject_first(
        norms < SMALLEST_NORM,
        "features",
        "is a zero vector, which has no direction",
        "drop documents without text, or embed them again",
    )
    if stored.dtype == torch.float32 and float((norms - 1).abs().max()) < UNIT:
        return Rows(stored)
    return Rows(stored, (1 / norms).float())


def combined_quality(
    values: Any,  # noqa: ANN401 - see as_tensor
    weights: Sequence[float] | None,
) -> Tensor:
    """Return the sum of the columns of a quality, (n, columns), each standardised, under their weights: (n,) float32.

    A constant column becomes 0. A quality of one column, (n,), is only multiplied by its weight.
    """
    quality = as_tensor(values, "quality", torch.device("cpu"))
    columns = (quality[:, None] if quality.ndim == 1 else quality).double()
    factors = [1.0] * columns.shape[-1] if weights is None else list(weights)
    if columns.ndim != 2 or len(factors) != columns.shape[1] or not np.isfinite(factors).all():
        raise SelectionInputError(
            f"quality_weights must be a finite number for each column of quality, received {factors} for a quality of "
            f"shape {tuple(quality.shape)}"
        )
    if columns.shape[1] > 1:
        deviation = columns.std(0, correction=0)
        varies = deviation > 1e-12 * columns.abs().amax(0)
        columns = torch.where(varies, (columns - columns.mean(0)) / torch.where(varies, deviation, 1.0), 0.0)
    return (columns @ torch.tensor(factors, dtype=torch.float64)).float()


def checked_column(
    values: Any,  # noqa: ANN401 - see as_tensor
    name: str,
    n: int,
    device: torch.device,
    *,
    least: float = -LARGEST,
) -> Tensor:
    """Check a number of each document, from `least` to `LARGEST`: (n,) float32.

    A wrong length, NaN or a value out of this range raises SelectionInputError.
    """
    column = as_tensor(values, name, device).float()
    if column.shape != (n,):
        raise SelectionInputError(
            f"{name} must have one value per row of features ({n}), received shape {tuple(column.shape)}: score and "
            "embed the same documents"
        )
    _reject_first(
        ~((column >= least) & (column <= LARGEST)),
        name,
        f"holds NaN, an infinite value or one beyond {LARGEST:g}",
        "score that document again or drop it",
    )
    return column


def checked_tokens(values: Any, n: int, device: torch.device) -> Tensor:  # noqa: ANN401 - see as_tensor
    """Check the token counts of a budget of tokens, and return them as (n,) int64, each at least 1."""
    if values is None:
        raise SelectionInputError(
            "budget_by 'tokens' needs the token count of every document: pass tokens, or budget by documents"
        )
    tokens = checked_column(values, "tokens", n, device)
    _reject_first(tokens < 1, "tokens", "is not a count of at least 1", "count that document's tokens again or drop it")
    return tokens.round().long()


def checked_budget(budget: int | None, select_ratio: float, available: int, unit: str) -> int:
    """Return the budget in units: `budget` itself, or the rounded share of those available, at least 1."""
    if budget is None:
        return max(1, round(select_ratio * available))
    if budget > available:
        raise SelectionInputError(
            f"budget is {budget} {unit}, but there are only {available}: lower it, or use select_ratio"
        )
    return budget


def _reject_first(bad: Tensor, column: str, fault: str, remedy: str) -> None:
    rows = bad.nonzero()[:, 0]
    if len(rows):
        raise SelectionInputError(
            f"{column} row {int(rows[0])} {fault} ({len(rows)} such rows of {len(bad)}): {remedy}"
        )
