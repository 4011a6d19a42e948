import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fineweb_mask.models.runtime.stopping import StoppedError
from fineweb_mask.tasks.processes import texts
from fineweb_mask.tasks.processes import workers as module
from fineweb_mask.tasks.processes.texts import NO_TEXT
from fineweb_mask.tasks.processes.workers import WorkerProcessError, Workers, cores, end_workers, running_workers

pytest.importorskip("trafilatura")
EXTRACT = (texts.__name__, '"extract"')


def children(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.fixture
def workers():
    workers = Workers(*EXTRACT, 1, seconds=60.0)
    yield workers
    workers.close()


@pytest.mark.long
def test_a_process_that_ends_is_replaced(workers):
    assert list(workers.map(workers.ask, [b""])) == [NO_TEXT]
    first = workers._server
    [worker] = children(first.pid)
    os.kill(worker, signal.SIGKILL)
    assert list(workers.map(workers.ask, [b"", b""])) == [NO_TEXT] * 2
    for process in (first.pid, *children(first.pid)):  # also what forks it
        os.kill(process, signal.SIGKILL)
    first.wait(30)  # asked while it is being ended, it would count as the second process that a message has ended
    assert list(workers.map(workers.ask, [b"", b""])) == [NO_TEXT] * 2
    assert workers._server is not first
    assert first.returncode == -signal.SIGKILL


def test_a_message_that_ends_every_process_is_given_up(workers, monkeypatch):
    list(workers.map(workers.ask, [b""]))
    monkeypatch.setattr(module._Worker, "ask", lambda *_: "ended")
    assert list(workers.map(workers.ask, [b"", b""])) == ["ended"] * 2


def test_a_stop_ends_it(workers, monkeypatch):
    def stop():
        raise StoppedError

    monkeypatch.setattr(module, "raise_if_stopped", stop)
    with pytest.raises(StoppedError):
        list(workers.map(workers.ask, [b""] * 100))


def test_several_threads_share_the_processes(workers):
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: list(workers.map(workers.ask, [b""] * 20)), range(4)))
    assert found == [[NO_TEXT] * 20] * 4
    assert len(children(workers._server.pid)) == 1


@pytest.mark.long
def test_what_is_asked_when_they_are_closed_is_a_transient_error_and_no_answer(workers):
    list(workers.map(workers.ask, [b""]))
    process = workers._server
    slow = b"\n<html><body>" + b"<p>word <b>word</b></p>" * 1_000_000 + b"</body></html>"
    timer = threading.Timer(0.5, workers.close)
    timer.start()
    with pytest.raises(WorkerProcessError, match="closed: run again"):
        list(workers.map(workers.ask, [slow]))
    timer.join()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(WorkerProcessError, match="closed: run again"):
        list(workers.map(workers.ask, [b""]))


def test_equal_work_is_done_by_the_same_processes_until_they_are_ended():
    first = running_workers(*EXTRACT, 1, seconds=60.0)
    assert running_workers(*EXTRACT, 1, seconds=60.0) is first
    assert running_workers(*EXTRACT, 1, seconds=61.0) is not first
    end_workers()
    assert first.closed
    assert running_workers(*EXTRACT, 1, seconds=60.0) is not first
    assert cores() >= 1
