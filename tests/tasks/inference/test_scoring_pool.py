"""Score in several processes: equal to one process; no process is left; errors are clear."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.tasks import score
from fineweb_mask.tasks.fit import models as fit
from fineweb_mask.tasks.inference.scorers import ROWS_WORTH_PROCESSES, ForkedScorer, useful_processes
from fineweb_mask.tasks.processes import workers
from fineweb_mask.tasks.processes.workers import WorkerProcessError, cores, end_workers
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.workspace.job import is_transient
from tests.tasks.jobs import score_job


@pytest.fixture(scope="module")
def placed(built):
    [model] = built.models
    return model.model_copy(update={"path": str(built.workspace.root / model.path)})


@pytest.fixture(autouse=True, scope="module")
def _no_workers_left():
    yield
    end_workers()


def scored(texts, *models):
    """Return the scores (n,) by the last of some models."""
    return ForkedScorer(models, len(models) - 1, 2).score(texts)


def test_scores_and_order_are_those_of_one_process_also_from_several_threads(placed):
    rng = np.random.default_rng(0)
    lower = placed.model_copy(update={"settings": placed.settings.model_copy(update={"lowercase": True})})
    words = ["orbit", "flour", "Whale", "\n", "</s>"]
    texts = [[" ".join(rng.choice(words, 9)) + f" {row}" for row in range(size)] for size in (0, 1, 300, 5_000)]
    models = [placed, lower]
    given = [(model, column) for model in models for column in texts]
    with ThreadPoolExecutor(len(given)) as threads:
        found = list(threads.map(lambda pair: scored(pair[1], *models[: models.index(pair[0]) + 1]), given))
    assert all(scores.dtype == np.float32 for scores in found)
    expected = (load_scorer(model.settings, model.path).score(column) for model, column in given)
    assert all(np.array_equal(scores, wanted) for scores, wanted in zip(found, expected, strict=True))


def test_stages_write_the_same_with_any_number_of_processes(copied):
    def planned(processes):
        given = copied.documents[0], copied.models, copied.statistics, copied.recipe.quality
        return score_job(copied.workspace, *given, processes)

    path = copied.workspace.resolve(copied.scores[0])
    before = path.read_bytes()
    path.unlink()
    assert planned(2).key == planned(1).key
    assert not score.score(planned(2)).cached
    assert path.read_bytes() == before
    job = copied.statistics_job.model_copy(update={"processes": 2})
    remove_file(job.manifest_path)
    assert fit.fit_statistics(job).details == copied.statistics.details


def test_a_model_that_cannot_be_loaded_is_named(placed):
    wrong = placed.model_copy(update={"settings": placed.settings.model_copy(update={"positive_label": "__label__hq"})})
    with pytest.raises(ModelError, match=r"no label '__label__hq', set positive_label to one of") as raised:
        scored(["orbit"], placed, wrong)
    assert not is_transient(raised.value)
    with pytest.raises(ModelError, match=r"none\.bin cannot be opened"):
        scored(["orbit"], placed.model_copy(update={"path": "none.bin"}))


def children(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.long
def test_a_killed_worker_is_replaced_and_the_end_of_the_workers_leaves_no_process(placed, monkeypatch):
    end_workers()
    texts = ["orbit"] * 2000
    whole = scored(texts, placed)
    [server] = [pool._server for pool in workers._running.values()]
    deadline = time.monotonic() + 30
    while len(forks := children(server.pid)) < 2:  # the first may have answered before the last was there
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(list(Path(f"/proc/{server.pid}/task").iterdir())) == 1  # the process that forks has one thread
    os.kill(forks[0], signal.SIGKILL)
    assert np.array_equal(whole, scored(texts, placed))
    forks += children(server.pid)
    end_workers()
    await_end(server.pid, *forks)
    monkeypatch.setattr(workers._Worker, "ask", lambda *_: "ended")
    message = "short of memory, give it fewer cores"
    with pytest.raises(WorkerProcessError, match=message) as raised:
        scored(texts, placed)
    assert is_transient(raised.value)
    assert isinstance(raised.value, ModelError)


SCRIPT = """
import os, signal, sys
from pathlib import Path
from fineweb_mask.tasks.inference.scorers import ForkedScorer, QualityModel
from fineweb_mask.tasks.processes import workers

scores = ForkedScorer([QualityModel.model_validate_json(sys.argv[1])], 0, 2).score(["orbit"] * 2000)
print(scores.shape, flush=True)
[server] = [pool._server.pid for pool in workers._running.values()]
print(server, Path(f"/proc/{server}/task/{server}/children").read_text(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_a_killed_script_without_a_main_guard_leaves_no_process(placed, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), placed.model_dump_json()]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    shape, processes = ran.stdout.splitlines()
    assert ran.returncode == -signal.SIGKILL
    assert shape == "(2000,)"
    assert len(processes.split()) >= 2  # the server, and a process or two: one may have been fast enough for all
    await_end(*map(int, processes.split()))


def await_end(*processes):
    deadline = time.monotonic() + 30
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_few_rows_are_scored_in_one_process():
    assert [useful_processes(ROWS_WORTH_PROCESSES - one) for one in (1, 0)] == [1, cores()]
