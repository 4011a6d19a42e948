"""Prefetching and background writing overlap with the caller's work, in order."""

import threading

import pytest

from fineweb_mask.tasks.inference.eligible import background_writer, prefetched


def test_items_come_in_order_the_next_one_is_computed_meanwhile_and_an_error_reaches_the_caller():
    made, is_made = [], [threading.Event() for _ in range(4)]

    def items():
        for item in range(4):
            made.append(item)
            is_made[item].set()
            yield item
        raise ValueError("broken")

    ahead = prefetched(items())
    for item in range(4):
        assert next(ahead) == item
        assert is_made[min(item + 1, 3)].wait(10)
        assert made[-1] <= item + 1
    with pytest.raises(ValueError, match="broken"):
        next(ahead)
    assert list(prefetched([])) == []


def test_background_work_overlaps_in_order_and_is_finished_at_the_end():
    started, release, done = threading.Event(), threading.Event(), []

    def slow():
        started.set()
        assert release.wait(10)
        done.append("slow")

    with background_writer() as later:
        later(slow)
        assert started.wait(10)  # and `later` has returned
        release.set()
        for item in range(20):
            later(lambda item=item: done.append(item))
    assert done == ["slow", *range(20)]


def test_an_error_in_the_background_is_raised_by_the_next_call_or_the_end():
    def broken():
        raise ValueError("broken")

    reached = []

    def run(times):
        with background_writer() as later:
            later(broken)
            for _ in range(times):
                later(lambda: reached.append("second"))
                reached.append("after")

    for times in (0, 1):
        with pytest.raises(ValueError, match="broken"):
            run(times)
    assert reached == []
