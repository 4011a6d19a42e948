"""Tracked loops report their progress, select the same as untracked loops, and stop on request."""

import numpy as np
import pytest

from fineweb_mask.models.runtime import progress
from fineweb_mask.models.runtime.progress import reporting_to, track, track_by_size
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, despite_stop, request_stop
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""

    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    return clock


@pytest.fixture
def at_once(monkeypatch):
    """Report every step."""
    monkeypatch.setattr(progress, "SECONDS", 0.0)


def reports_of(work):
    """Return the reports during some work, and its result."""
    reports = []
    with reporting_to(lambda fraction, steps: reports.append((fraction, steps))):
        result = work()
    return reports, result


@pytest.mark.parametrize(
    "tracked", [lambda: track("steps", range(5)), lambda: track_by_size("documents", range(5), 5, lambda _: 1)]
)
def test_a_stop_request_ends_the_loop_before_the_next_step(tracked):
    done = []

    def work():
        for step in tracked():
            done.append(step)
            if step == 1:
                request_stop()

    for run in (work, lambda: reports_of(work)):
        with pytest.raises(StoppedError, match="stopped on request"):
            run()
        with despite_stop():  # where it is said how a run ended
            assert list(tracked()) == [*range(5)]
        clear_stop_request()
        assert list(tracked()) == [*range(5)]
    assert done == [0, 1, 0, 1]


def test_a_loop_is_reported_twice_a_second_after_half_a_second(clock):
    def work():
        for _ in track("outer", range(2)):
            clock.now += 0.25
            for _ in track("inner", range(8)):
                clock.now += 0.25

    reports, _ = reports_of(work)
    assert [", ".join(map(str, steps)) for _, steps in reports] == [
        line
        for outer in range(2)
        for line in [f"outer {outer} of 2", *(f"outer {outer} of 2, inner {inner} of 8" for inner in (3, 5, 7, 8))]
    ] + ["outer 2 of 2"]
    for brief in (lambda: list(track("only", range(1))), lambda: [list(track("brief", range(1000))) for _ in range(9)]):
        assert not any(steps for _, steps in reports_of(brief)[0])


def test_steps_of_unequal_size_are_counted_by_what_they_hold_and_never_more_than_the_total(at_once):
    def work():
        for batch in track_by_size("documents", iter(["aaa", "b"]), 4, len, part=(0, 1)):
            list(track("tokens", range(len(batch)), part=(0, 1)))

    reports, _ = reports_of(work)
    of_documents = [(0, [0]), (0, [0, 0]), (0.25, [0, 1]), (0.5, [0, 2]), (0.75, [0, 3]), (0.75, [3])]
    of_the_last = [(0.75, [3]), (1, [3]), (1, [4])]  # its own loop has one step
    assert [(share, [step.done for step in steps]) for share, steps in reports] == of_documents + of_the_last
    retried, _ = reports_of(lambda: list(track_by_size("tokens", [3, 3, 3], 6, int, part=(0, 1))))
    assert [(share, steps[0].done) for share, steps in retried] == [(0, 0), (0.5, 3), (1, 6), (1, 6)]


def test_the_fraction_follows_nested_parts_and_never_falls(at_once):
    def work():
        for _ in track("blocks", range(2), part=(0, 1)):
            list(track("solving", range(2), part=(0, 0.5)))
            list(track("unknown", range(3)))

    reports, _ = reports_of(work)
    assert [share for share, _ in reports] == [0, 0, 0.125, 0.25, *[0.25] * 4, 0.5, 0.5, 0.625, 0.75, *[0.75] * 4, 1]


@pytest.fixture(scope="module")
def block():
    dice = np.random.default_rng(0)
    return dice.standard_normal((100, 8)).astype(np.float32), dice.random(100).astype(np.float32)


@pytest.mark.parametrize(
    ("solver", "metric", "what", "total", "share"),
    [
        ("greedy", "pairwise", "greedy picks", 20, 0.9),
        ("greedy", "facility", "greedy picks", 20, 0.9),
        ("policy_gradient", "disf", "policy gradient steps", 10, 1.0),
        ("mean_field", "disf", "steps of the relaxation", None, 0.0),
        ("semdedup", "disf", "clusters", 10, 0.0),
    ],
)
def test_every_solver_reports_its_steps_selects_the_same_and_ends(solver, what, total, share, metric, block, at_once):
    settings = SelectionSettings.model_validate(
        {"solver": solver, "metrics": metric, "select_ratio": 0.2, "policy_gradient": {"n_epochs": 10}}
    )
    alone = select(*block, settings)
    reports, selection = reports_of(lambda: select(*block, settings))
    places = [step for _, steps in reports for step in steps if step.what == what]
    done = [step.done for step in places if step.total == total]
    assert places
    assert total is None or (done[-1], set(done)) == (total, set(range(total + 1)))
    shares = [share for share, _ in reports]
    assert shares == sorted(shares)
    assert shares[-1] == share
    assert selection.indices.tobytes() == alone.indices.tobytes()
    assert selection.inclusion.tobytes() == alone.inclusion.tobytes()
    assert (selection.objective, selection.upper_bound) == (alone.objective, alone.upper_bound)
    with pytest.raises(StoppedError), reporting_to(lambda *_: request_stop()):
        select(*block, settings)
    clear_stop_request()
