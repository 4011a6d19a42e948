"""A stop request ends every long computation, and can be cleared for the next run."""

import numpy as np
import pytest

from fineweb_mask.models.runtime import stopping
from fineweb_mask.models.runtime.stopping import (
    StoppedError,
    clear_stop_request,
    despite_stop,
    raise_if_stopped,
    request_stop,
)
from fineweb_mask.models.selection import SelectionSettings, select


@pytest.fixture(autouse=True)
def cleared():
    yield
    clear_stop_request()


def test_only_a_stop_request_raises_but_where_it_is_said_how_a_run_ended():
    raise_if_stopped()
    request_stop()
    with despite_stop():
        raise_if_stopped()
    with pytest.raises(StoppedError, match="stopped on request"):
        raise_if_stopped()
    clear_stop_request()
    raise_if_stopped()


@pytest.mark.parametrize("solver", ["mean_field", "greedy", "policy_gradient", "random", "top_quality"])
@pytest.mark.parametrize("metric", ["pairwise", "disf", "facility"])
def test_every_solver_ends(monkeypatch, solver, metric):
    checks = []

    def second_time():
        checks.append(1)
        return len(checks) > 2

    monkeypatch.setattr(stopping._requested, "is_set", second_time)
    dice = np.random.default_rng(0)
    features = dice.standard_normal((300, 8)).astype(np.float32)
    settings = SelectionSettings(solver=solver, metrics=metric, select_ratio=0.2)
    with pytest.raises(StoppedError):
        select(features, dice.random(300).astype(np.float32), settings, device="cpu")
    assert len(checks) == 3
