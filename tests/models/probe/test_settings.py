"""Settings of the probe: what contradicts itself is refused."""

import pytest
from pydantic import ValidationError

from fineweb_mask.models.probe.settings import ProbeSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"arms": [{"name": "a", "selector": "random"}, {"name": "a", "selector": "greedy"}]}, "two arms are called a"),
        ({"arms": [{"name": "a"}, {"name": "b", "selector": "greedy"}]}, "either selector or path"),
        ({"heldout": {"pool": "x.parquet"}}, "own set"),
        ({"seeds": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        ProbeSettings.model_validate(values)
