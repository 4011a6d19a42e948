import os
import signal
import threading

import pytest

from fineweb_mask.models.runtime.stopping import StoppedError
from fineweb_mask.tasks.processes import text_workers as module
from fineweb_mask.tasks.processes.text_worker import EXTRACT, NO_TEXT
from fineweb_mask.tasks.processes.text_workers import TextWorkers, cores, text_workers

pytest.importorskip("trafilatura")
WORK = f'"{EXTRACT}"'


@pytest.fixture
def workers():
    with TextWorkers(WORK, 1, 60.0) as workers:
        yield workers


def test_a_process_that_ends_is_replaced(workers):
    assert list(workers.map(workers.ask, [b""])) == [NO_TEXT]
    [first] = workers._workers
    os.kill(first._process.pid, signal.SIGKILL)
    assert list(workers.map(workers.ask, [b"", b""])) == [NO_TEXT] * 2
    assert len(workers._workers) == 2
    assert first.is_closed


def test_a_message_that_ends_every_process_is_given_up(workers, monkeypatch):
    list(workers.map(workers.ask, [b""]))
    monkeypatch.setattr(module._Worker, "ask", lambda self, *_: self.close() or "ended")
    assert list(workers.map(workers.ask, [b"", b""])) == ["ended"] * 2


def test_a_stop_ends_it(workers, monkeypatch):
    def stop():
        raise StoppedError

    monkeypatch.setattr(module, "raise_if_stopped", stop)
    with pytest.raises(StoppedError):
        list(workers.map(workers.ask, [b""] * 100))


def test_several_threads_share_the_processes(workers):
    found = {}

    def work(number):
        found[number] = list(workers.map(workers.ask, [b""] * 20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), [NO_TEXT] * 20)
    assert len(workers._workers) == 1


def test_equal_work_is_done_by_the_same_processes():
    assert text_workers(EXTRACT, 60.0) is text_workers(EXTRACT, 60.0)
    assert text_workers(EXTRACT, 60.0) is not text_workers(EXTRACT, 61.0)
    assert cores() >= 1
