"""Read the values of `--lamb`: a list, a list with an ellipsis, or from:to:step."""

import math

from fineweb_mask.models.errors import SettingsError

DEFAULT = "0,0.1,...,1"
ELLIPSES = {"...", "…"}
MAX_VALUES = 201
"""Limit on the values of one sweep: each is a selection."""
DIGITS = 9
"""Decimals that values are rounded to, so that 0.1 + 0.2 is 0.3."""


class LambError(SettingsError):
    """The values of lamb cannot be read."""


def parse_lambs(text: str) -> tuple[float, ...]:
    """Return the values in ascending order without repeats.

    Raises
    ------
    LambError
        If a value is not a number from 0 to 1, or a step is not positive.

    Examples
    --------
    >>> parse_lambs("0,0.25,...,1")
    (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    if ":" in text:
        parts = text.split(":")
        if len(parts) != 3:
            raise LambError(f"--lamb takes from:to:step, such as 0:1:0.1, received {text!r}")
        first, last, step = (_number(part, text) for part in parts)
        values = _range(first, last, step, text)
    else:
        values = _listed([part.strip() for part in text.split(",")], text)
    for value in values:
        if not 0 <= value <= 1:
            raise LambError(f"--lamb takes values from 0 to 1, received {value:g}")
    return tuple(sorted({round(value, DIGITS) + 0.0 for value in values}))


def _listed(parts: list[str], text: str) -> list[float]:
    values: list[float] = []
    for index, part in enumerate(parts):
        if part not in ELLIPSES:
            values.append(_number(part, text))
            continue
        if index < 2 or index + 1 >= len(parts) or ELLIPSES & set(parts[index - 2 : index]):
            raise LambError(f"--lamb: an ellipsis goes between two values and the last, as in {DEFAULT}, not {text!r}")
        first, second = values[-2:]
        values += _range(second, _number(parts[index + 1], text), second - first, text)
    return values


def _range(first: float, last: float, step: float, text: str) -> list[float]:
    if step <= 0 or last < first:
        raise LambError(f"--lamb {text!r}: the step must be positive and lead upwards, from {first:g} to {last:g}")
    count = round((last - first) / step, DIGITS) // 1 + 1
    if count > MAX_VALUES:
        raise LambError(f"--lamb {text!r} means {count:,.0f} values, {MAX_VALUES} are allowed")
    values = [first + step * index for index in range(int(count))]
    return values if abs(values[-1] - last) < 10**-DIGITS else [*values, last]


def _number(part: str, text: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise LambError(f"--lamb takes numbers, as in {DEFAULT} or 0:1:0.1, received {part!r} in {text!r}")
    return number
