"""What a selection accepts: a bad input is named by column, first bad row and remedy, before any work."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.selection.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

CHECK_ROWS = 16_384  # rows read at once
UNIT = 1e-6  # a float32 row this near to norm 1 is taken as it is
SMALLEST_NORM = 1e-30  # below it a float32 row has too few digits left to have a direction
LARGEST_QUALITY = 1e30  # sums over a billion documents of it stay finite in float64 and its square in float32


class SelectionInputError(DataError):
    """An input from which nothing can be selected; the message names column, row and remedy."""


def as_tensor(
    values: Any,  # noqa: ANN401 - numpy, torch or anything that numpy reads
    column: str,
    device: torch.device,
) -> Tensor:
    """Bring an array to the device; float16 and float32 stay as they are, the rest becomes float32."""
    if not isinstance(values, torch.Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            msg = f"{column} must hold numbers, received dtype {array.dtype}: convert the column to float32"
            raise SelectionInputError(msg)
        if array.dtype not in (np.float16, np.float32):
            with np.errstate(over="ignore"):  # what overflows becomes infinite and is reported as such
                array = array.astype(np.float32)
        with warnings.catch_warnings():
            # Arrow hands out read-only arrays; nothing here writes to them, and a copy could be gigabytes.
            warnings.simplefilter("ignore", UserWarning)
            values = torch.from_numpy(np.ascontiguousarray(array))
    elif values.dtype not in (torch.float16, torch.float32):
        values = values.to(torch.float32)
    tensor: Tensor = values
    return tensor.detach().to(device)


def checked_features(values: Any, device: torch.device) -> Rows:  # noqa: ANN401 - see as_tensor
    """Check the features and give their unit rows.

    Parameters
    ----------
    values
        (n, d) array or tensor.
    device
        Where the rows are kept.

    Returns
    -------
    Rows
        Unit rows, (n, d).

    Raises
    ------
    SelectionInputError
        If the shape is not (n, d), or a row holds NaN or an infinity, or is zero.
    """
    stored = as_tensor(values, "features", device)
    if stored.ndim != 2 or 0 in stored.shape:
        shape = tuple(stored.shape)
        msg = f"features must have shape (documents, dimensions) with at least one of each, received {shape}"
        raise SelectionInputError(msg)
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
    """Give the norms of (b, d) rows, float64: by float32 squares where these are in range."""
    norms: Tensor = torch.linalg.vector_norm(rows.float(), dim=1).double()
    fits = torch.isfinite(norms) & (norms > 1e-15)
    if not bool(fits.all()):
        norms[~fits] = torch.linalg.vector_norm(rows[~fits], dim=1, dtype=torch.float64)
    return norms


def checked_quality(
    values: Any,  # noqa: ANN401 - see as_tensor
    n: int,
    device: torch.device,
    weights: list[float] | None = None,
) -> Tensor:
    """Check the quality and combine its columns.

    Several columns are each standardised (mean 0, deviation 1; a constant one becomes 0) and summed under
    their weights. One column stays as it is, times its weight.

    Returns
    -------
    Tensor
        (n,) float32.

    Raises
    ------
    SelectionInputError
        If the length is not n, a value is NaN or infinite, or there is not one weight per column.
    """
    quality = as_tensor(values, "quality", device).float()
    if quality.ndim not in {1, 2} or len(quality) != n or quality.numel() == 0:
        msg = (
            f"quality must have one row per row of features ({n}), received shape {tuple(quality.shape)}: "
            "score and embed the same documents"
        )
        raise SelectionInputError(msg)
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
        msg = f"quality has {columns.shape[1]} columns, but quality_weights has {len(factors)}: one for each"
        raise SelectionInputError(msg)
    if not all(np.isfinite(factor) for factor in factors):
        msg = f"quality_weights must be finite, received {factors}"
        raise SelectionInputError(msg)
    columns = columns.double()
    if columns.shape[1] > 1:
        deviation = columns.std(0, correction=0)
        varies = deviation > 1e-12 * columns.abs().amax(0)
        columns = torch.where(varies, (columns - columns.mean(0)) / torch.where(varies, deviation, 1.0), 0.0)
    return (columns @ torch.tensor(factors, dtype=torch.float64, device=device)).float()


def checked_tokens(values: Any, n: int, device: torch.device) -> Tensor:  # noqa: ANN401 - see as_tensor
    """Check the token counts that a budget of tokens is measured in: (n,) int64, each at least 1."""
    if values is None:
        msg = "budget_by 'tokens' needs the token count of every document: pass tokens, or budget by documents"
        raise SelectionInputError(msg)
    tokens = as_tensor(values, "tokens", torch.device("cpu")).double()
    if tokens.shape != (n,):
        msg = f"tokens must have one value per row of features ({n}), received shape {tuple(tokens.shape)}"
        raise SelectionInputError(msg)
    _reject_first(
        ~torch.isfinite(tokens) | (tokens < 1),
        "tokens",
        "is not a count of at least 1",
        "count that document's tokens again or drop it",
    )
    return tokens.round().long().to(device)


def checked_budget(budget: int | None, select_ratio: float, available: int, unit: str) -> int:
    """Give the budget in units: the explicit one, or the rounded share of what there is, at least 1."""
    if budget is None:
        return max(1, round(select_ratio * available))
    if budget > available:
        msg = f"budget is {budget} {unit}, but there are only {available}: lower it, or use select_ratio"
        raise SelectionInputError(msg)
    return budget


def _reject_first(bad: Tensor, column: str, fault: str, remedy: str) -> None:
    rows = bad.nonzero()[:, 0]
    if len(rows):
        msg = f"{column} row {int(rows[0])} {fault} ({len(rows)} such rows of {len(bad)}): {remedy}"
        raise SelectionInputError(msg)
