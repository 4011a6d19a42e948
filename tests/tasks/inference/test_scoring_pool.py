"""Score in several processes: equal to one process; no process is left; errors are clear."""

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
from fineweb_mask.tasks import fit, score
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


def scored(texts, model):
    return ForkedScorer(model, 2).score(texts)


def test_scores_and_order_are_those_of_one_process_also_from_several_threads(placed):
    rng = np.random.default_rng(0)
    lower = placed.model_copy(update={"settings": placed.settings.model_copy(update={"lowercase": True})})
    words = ["orbit", "flour", "Whale", "\n", "</s>"]
    texts = [[" ".join(rng.choice(words, 9)) + f" {row}" for row in range(size)] for size in (0, 1, 300, 5_000)]
    models = [placed, lower]
    given = [(model, column) for model in models for column in texts]
    with ThreadPoolExecutor(len(given)) as threads:
        found = list(threads.map(lambda pair: scored(pair[1], pair[0]), given))
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
        scored(["orbit"], wrong)
    assert not is_transient(raised.value)
    with pytest.raises(ModelError, match=r"none\.bin cannot be opened"):
        scored(["orbit"], placed.model_copy(update={"path": "none.bin"}))


def test_a_process_that_ended_may_have_been_short_of_memory(placed, monkeypatch):
    monkeypatch.setattr(workers._Worker, "ask", lambda *_: "ended")
    message = "short of memory, give it fewer cores"
    with pytest.raises(WorkerProcessError, match=message) as raised:
        scored(["orbit"], placed)
    assert is_transient(raised.value)


SCRIPT = """
import os, signal, sys
from pathlib import Path
from fineweb_mask.tasks.inference.scorers import ForkedScorer, QualityModel
from fineweb_mask.tasks.processes import workers

scores = ForkedScorer(QualityModel.model_validate_json(sys.argv[1]), 2).score(["orbit"] * 2000)
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
    deadline = time.monotonic() + 30
    while any(is_running(int(process)) for process in processes.split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_few_rows_are_scored_in_one_process():
    assert [useful_processes(ROWS_WORTH_PROCESSES - one) for one in (1, 0)] == [1, cores()]
