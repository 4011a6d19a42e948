"""What overlaps: the next item is made and the last one finished while one is worked on, in order."""

import threading

import pytest

from fineweb_mask.tasks.inference.prefetch import Prefetched, background_writer


def test_items_come_in_order_and_the_next_is_made_meanwhile():
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


def test_no_more_than_one_item_is_made_ahead():
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


def test_an_error_in_making_an_item_reaches_the_caller():
    def items():
        yield 1
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        found.extend(Prefetched(items()))


def test_work_behind_is_done_in_order_and_whole_at_the_end():
    done = []
    with background_writer() as later:
        for item in range(20):
            later(lambda item=item: done.append((item, threading.current_thread() is threading.main_thread())))
    assert done == [(item, False) for item in range(20)]


def test_work_behind_overlaps():
    started, release = threading.Event(), threading.Event()

    def slow():
        started.set()
        assert release.wait(10)

    with background_writer() as later:
        later(slow)
        assert started.wait(10)  # and `later` has returned
        release.set()


def test_an_error_behind_is_raised_by_the_next_call_or_the_end():
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
