"""Reads the values of `--lamb`: a list, a list with an ellipsis, or from:to:step."""

import math

from fineweb_mask.models.errors import SettingsError

DEFAULT = "0,0.1,...,1"
ELLIPSES = {"...", "…"}
MOST = 201
"""Values in one sweep, at most: each is a selection."""
DIGITS = 9
"""After the decimal point: 0.1 + 0.2 is 0.3."""


class LambError(SettingsError):
    """The values of lamb cannot be read."""


def parse_lambs(text: str) -> tuple[float, ...]:
    """Return the values, ascending, each once.

    Raises
    ------
    LambError
        If one is no number or not from 0 to 1, or a step does not lead from one value to the next.

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
    for place, part in enumerate(parts):
        if part not in ELLIPSES:
            values.append(_number(part, text))
            continue
        if place < 2 or place + 1 >= len(parts) or ELLIPSES & set(parts[place - 2 : place]):
            raise LambError(
                f"--lamb: an ellipsis stands between two values and the last, as in {DEFAULT}, not {text!r}"
            )
        first, second = values[-2:]
        values += _range(second, _number(parts[place + 1], text), second - first, text)
    return values


def _range(first: float, last: float, step: float, text: str) -> list[float]:
    if step <= 0 or last < first:
        raise LambError(f"--lamb {text!r}: the step must be positive and lead upwards, from {first:g} to {last:g}")
    count = round((last - first) / step, DIGITS) // 1 + 1
    if count > MOST:
        raise LambError(f"--lamb {text!r} means {count:,.0f} values, {MOST} are allowed")
    values = [first + step * place for place in range(int(count))]
    return values if abs(values[-1] - last) < 10**-DIGITS else [*values, last]


def _number(part: str, text: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise LambError(f"--lamb takes numbers, as in {DEFAULT} or 0:1:0.1, received {part!r} in {text!r}")
    return number
