"""Prefetching and background writing overlap with the caller's work, in order."""

import threading

import pytest

from fineweb_mask.tasks.inference.prefetch import Prefetched, background_writer


def test_items_come_in_order_and_the_next_is_computed_meanwhile():
    second_made = threading.Event()

    def items():
        yield 1
        second_made.set()
        yield 2

    found = []
    for item in Prefetched(items()):
        assert item == 2 or second_made.wait(10)
        found.append(item)
    assert found == [1, 2]
    assert list(Prefetched([])) == []


def test_only_one_item_is_prefetched():
    made = []

    def items():
        for item in range(5):
            made.append(item)
            yield item

    for item in Prefetched(items()):
        assert made[-1] <= item + 1


def test_waiting_is_measured_after_the_first_item():
    release = threading.Event()

    def items():
        yield 1
        release.wait(10)
        yield 2

    ahead = Prefetched(items())
    timer = threading.Timer(0.2, release.set)
    timer.start()
    assert list(ahead) == [1, 2]
    assert ahead.waited >= 0.1


def test_an_error_while_prefetching_reaches_the_caller():
    def items():
        yield 1
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        found.extend(Prefetched(items()))


def test_background_work_is_in_order_and_finished_at_the_end():
    done = []
    with background_writer() as later:
        for item in range(20):
            later(lambda item=item: done.append((item, threading.current_thread() is threading.main_thread())))
    assert done == [(item, False) for item in range(20)]


def test_background_work_overlaps():
    started, release = threading.Event(), threading.Event()

    def slow():
        started.set()
        assert release.wait(10)

    with background_writer() as later:
        later(slow)
        assert started.wait(10)  # and `later` has returned
        release.set()


def test_an_error_in_the_background_is_raised_by_the_next_call_or_the_end():
    def broken():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), background_writer() as later:
        later(broken)
    reached = []

    def twice():
        with background_writer() as later:
            later(broken)
            later(lambda: reached.append("second"))
            reached.append("after")

    with pytest.raises(ValueError, match="broken"):
        twice()
    assert reached == []
