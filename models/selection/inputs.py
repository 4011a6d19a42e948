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
SMALLEST_NORM = 1e-30  # a float32 row below it has too few digits left to have a direction
LARGEST_QUALITY = 1e30  # sums of it over a billion documents stay finite in float64, its square in float32


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
    group_names: tuple[str, ...] = ()  # set by `checked`: the labels of the groups' numbers
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
        """Return them as tensors on a device, groups as numbers from 0.

        Raises
        ------
        SelectionInputError
            If one has another length than the documents, or holds NaN.
        """
        scores = {name: _checked_column(column, f"scores {name!r}", n, device) for name, column in self.scores.items()}
        for name, column in scores.items():
            _reject_first(~torch.isfinite(column), f"scores {name!r}", "is not finite", "score that document again")
        groups, names = None, ()
        if self.groups is not None:
            labels = np.asarray(self.groups).astype(str)
            if labels.shape != (n,):
                raise SelectionInputError(
                    f"groups must have one label per row of features ({n}), received shape {labels.shape}"
                )
            found, numbers = np.unique(labels, return_inverse=True)
            groups, names = torch.from_numpy(numbers).to(device), tuple(found.tolist())
        log_weights = None
        if self.log_weights is not None:
            log_weights = _checked_column(self.log_weights, "log_weights", n, device)
            is_bad = log_weights == torch.inf
            _reject_first(is_bad, "log_weights", "is infinite", "compute that document's value again")
        targets = _checked_targets(self.targets, d, device)
        return replace(self, scores=scores, groups=groups, group_names=names, targets=targets, log_weights=log_weights)


def _checked_column(values: Any, name: str, n: int, device: torch.device) -> Tensor:  # noqa: ANN401
    column = as_tensor(values, name, device).float()
    if column.shape != (n,):
        raise SelectionInputError(
            f"{name} must have one value per row of features ({n}), received shape {tuple(column.shape)}"
        )
    _reject_first(torch.isnan(column), name, "is NaN", "compute that document's value again")
    return column


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
        array = _stacked(np.asarray(values), column)
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


def _stacked(array: NDArray[Any], column: str) -> NDArray[Any]:
    """Return a column of vectors, such as one of pandas or Arrow, as one array (n, d)."""
    if array.shape == () and array.item() is None:
        example = "; np.zeros(len(features)) selects by diversity alone" if column == "quality" else ""
        raise SelectionInputError(f"{column} is None: give an array with a row for every document{example}")
    if array.dtype != object or array.ndim != 1 or not len(array):
        return array
    shapes = [np.shape(row) for row in array]
    for row, shape in enumerate(shapes):
        if array[row] is None:
            raise SelectionInputError(f"{column} row {row} is missing (None): compute it again, or drop that document")
        if shape != shapes[0]:
            raise SelectionInputError(
                f"{column} row {row} has shape {shape}, row 0 has {shapes[0]}: every document needs one of equal length"
            )
    return np.stack(list(array))


def checked_features(values: Any, device: torch.device) -> Rows:  # noqa: ANN401 - see as_tensor
    """Check features (n, d) and return them as unit rows; raise SelectionInputError for a bad shape or row."""
    stored = as_tensor(values, "features", device)
    if stored.ndim != 2 or 0 in stored.shape:
        raise SelectionInputError(
            "features must have shape (documents, dimensions) with at least one of each, "
            f"received {tuple(stored.shape)}"
        )
    norms = torch.cat([_norms(part) for part in torch.split(stored, CHECK_ROWS)])
    _reject_first(
        ~torch.isfinite(norms),
        "features",
        "holds NaN or an infinite value",
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


def _norms(rows: Tensor) -> Tensor:
    """Compute the norms of rows (b, d), by float32 squares where these are in range: (b,) float64."""
    norms: Tensor = torch.linalg.vector_norm(rows.float(), dim=1).double()
    fits = torch.isfinite(norms) & (norms > 1e-15)
    if not bool(fits.all()):
        norms[~fits] = torch.linalg.vector_norm(rows[~fits], dim=1, dtype=torch.float64)
    return norms


def checked_quality(
    values: Any,  # noqa: ANN401 - see as_tensor
    n: int,
    device: torch.device,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Check quality, (n,) or (n, columns), and combine its columns under their weights (None: all 1): (n,) float32.

    Several columns are each standardised (mean 0, standard deviation 1; a constant column becomes 0) and summed under
    their weights. One column is only multiplied by its weight. A wrong length, NaN, an infinite value or a wrong number
    of weights raises SelectionInputError.
    """
    quality = as_tensor(values, "quality", device).float()
    if quality.ndim not in {1, 2} or len(quality) != n or quality.numel() == 0:
        raise SelectionInputError(
            f"quality must have one row per row of features ({n}), received shape {tuple(quality.shape)}: "
            "score and embed the same documents"
        )
    columns = quality[:, None] if quality.ndim == 1 else quality
    bad = ~torch.isfinite(columns) | (columns.abs() > LARGEST_QUALITY)
    _reject_first(
        bad.any(1),
        "quality",
        f"holds NaN, an infinite value or one beyond {LARGEST_QUALITY:g}",
        "score that document again or drop it",
    )
    factors = [1.0] * columns.shape[1] if weights is None else weights
    if len(factors) != columns.shape[1]:
        raise SelectionInputError(
            f"quality has {columns.shape[1]} columns, but quality_weights has {len(factors)}: give one for each"
        )
    if not all(np.isfinite(factor) for factor in factors):
        raise SelectionInputError(f"quality_weights must be finite, received {factors}")
    columns = columns.double()
    if columns.shape[1] > 1:
        deviation = columns.std(0, correction=0)
        varies = deviation > 1e-12 * columns.abs().amax(0)
        columns = torch.where(varies, (columns - columns.mean(0)) / torch.where(varies, deviation, 1.0), 0.0)
    return (columns @ torch.tensor(factors, dtype=torch.float64, device=device)).float()


def checked_tokens(values: Any, n: int, device: torch.device) -> Tensor:  # noqa: ANN401 - see as_tensor
    """Check the token counts of a budget of tokens, and return them as (n,) int64, each at least 1."""
    if values is None:
        raise SelectionInputError(
            "budget_by 'tokens' needs the token count of every document: pass tokens, or budget by documents"
        )
    tokens = as_tensor(values, "tokens", torch.device("cpu")).double()
    if tokens.shape != (n,):
        raise SelectionInputError(
            f"tokens must have one value per row of features ({n}), received shape {tuple(tokens.shape)}"
        )
    _reject_first(
        ~torch.isfinite(tokens) | (tokens < 1),
        "tokens",
        "is not a count of at least 1",
        "count that document's tokens again or drop it",
    )
    return tokens.round().long().to(device)


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
