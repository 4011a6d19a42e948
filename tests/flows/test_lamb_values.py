"""The values of `--lamb`."""

import pytest

from fineweb_mask.flows.lamb_values import DEFAULT, LambError, parse_lambs


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,0,0.5,0.5", (0, 0.5, 1)),
        ("0,0.3,…,1", (0, 0.3, 0.6, 0.9, 1)),
        ("0.1:0.3:0.1", (0.1, 0.2, 0.3)),
        ("0:1:0.4", (0, 0.4, 0.8, 1)),
        ("0,0.05,...,0.2,0.5,1", (0, 0.05, 0.1, 0.15, 0.2, 0.5, 1)),
        (DEFAULT, tuple(round(place / 10, 1) for place in range(11))),
    ],
)
def test_values_are_read(text, values):
    assert parse_lambs(text) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "received ''"),
        ("0,a", "received 'a' in '0,a'"),
        ("0,1.2", "from 0 to 1, received 1.2"),
        ("nan", "received 'nan'"),
        ("0:1", "from:to:step"),
        ("0:1:0", "the step must be positive"),
        ("1:0:0.1", "lead upwards"),
        ("0,...,1", "an ellipsis goes between two values and the last"),
        ("0,0.1,...", "an ellipsis goes between two values and the last"),
        ("0.2,0.1,...,1", "the step must be positive"),
        ("0:1:0.0001", "means 10,001 values, 201 are allowed"),
    ],
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(LambError, match=message):
        parse_lambs(text)
