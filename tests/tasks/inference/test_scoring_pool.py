"""Score in several processes: equal to one process for any row groups; no process is left; errors are clear."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.tasks import score
from fineweb_mask.tasks.fit import models as fit
from fineweb_mask.tasks.inference.scorers import QualityModel, load_models
from fineweb_mask.tasks.inference.scoring_pool import (
    ROWS_WORTH_PROCESSES,
    STEP_ROWS,
    Part,
    ScoringError,
    ScoringProcessError,
    ScoringProcesses,
    Shares,
    _running,
    end_scoring_processes,
    score_file,
    useful_processes,
)
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.storage.parquet import DamagedFileError, write_table
from fineweb_mask.tasks.workspace.job import is_transient
from tests.tasks.jobs import score_job, statistics_job


@pytest.fixture(scope="module")
def placed(built: Any) -> QualityModel:
    [model] = built.models
    return model.model_copy(update={"path": str(built.workspace.root / model.path)})


@pytest.fixture(scope="module")
def processes(placed: QualityModel) -> Iterator[ScoringProcesses]:
    """Two workers, shared by the tests that do not end them."""
    started = ScoringProcesses([placed], 2)
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _no_workers_left() -> Iterator[None]:
    yield
    end_scoring_processes()


def written(path: Path, texts: list[str], row_group_size: int) -> Path:
    pq.write_table(
        pa.table({"row": pa.array(range(len(texts)), pa.uint32()), "text": texts}), path, row_group_size=row_group_size
    )
    return path


@pytest.mark.parametrize("row_group_size", [70, 1000, 5000])
def test_scores_and_order_are_those_of_one_process(built, placed, processes, tmp_path, row_group_size):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["orbit", "flour", "whale", "\n", "</s>"], 9)) + f" {row}" for row in range(5000)]
    path = written(tmp_path / "in.parquet", texts, row_group_size)
    expected = load_models(built.workspace, [placed])["space"].score(texts)
    found = processes.score(path)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected[None])


def test_threads_score_several_files_with_several_models_at_once(placed, tmp_path):
    lower = placed.settings.model_copy(update={"name": "lower", "lowercase": True})
    models = [placed, placed.model_copy(update={"settings": lower})]
    texts = [[f"orbit whale {row * size}" for row in range(size)] for size in (0, 300, 2500, 4000, 6000)]
    paths = [written(tmp_path / f"{len(column)}.parquet", column, 1500) for column in texts]
    expected = [[load_scorer(model.settings, model.path).score(column) for model in models] for column in texts]
    started = ScoringProcesses(models, 3)
    try:
        with ThreadPoolExecutor(len(paths)) as threads:
            found = list(threads.map(started.score, paths))
    finally:
        started.close()
    assert all(np.array_equal(scores, np.stack(wanted)) for scores, wanted in zip(found, expected, strict=True))


def test_a_file_without_rows(processes, tmp_path):
    assert processes.score(written(tmp_path / "in.parquet", [], 10)).shape == (1, 0)


@pytest.mark.parametrize("row_groups", [[], [1], [10_003], [700, 0, 9_000, 2], [4_000] * 4])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shares_contain_every_row_once(row_groups, workers):
    shares, seen, active, turn = Shares(row_groups), [], list(range(workers)), 0
    while active:
        turn += 1
        worker = active[turn % 7 % len(active)]  # some workers are faster
        part = shares.next(worker)
        if part is None:
            active.remove(worker)
        else:
            assert part.start % STEP_ROWS == 0
            seen.append(part)
    rows = [(part.row_group, row) for part in seen for row in range(part.start, part.stop)]
    assert sorted(rows) == [(group, row) for group, count in enumerate(row_groups) for row in range(count)]


def test_an_idle_worker_takes_half_of_another_workers_rows():
    shares = Shares([10_000])
    assert shares.next(0) == Part(0, 0, 500)
    assert shares.next(1) == Part(0, 5_000, 5_500)
    assert shares.next(0) == Part(0, 500, 1_000)
    assert Shares([1_900]).next(0) is not None
    few = Shares([1_900])
    few.next(0)
    assert few.next(1) is None


def test_stage_writes_the_same_bytes_with_any_number_of_processes(copied: Any) -> None:
    documents = copied.documents[0]
    path = copied.workspace.resolve(copied.scores[0])
    before = path.read_bytes()
    path.unlink()
    job = score_job(copied.workspace, documents, copied.models, copied.statistics, copied.recipe.quality, 2)
    assert job.key == copied_key(copied, documents)
    assert not score.score(job).cached
    assert path.read_bytes() == before
    assert len(_running) == 1


def copied_key(copied: Any, documents: Any) -> Any:
    return score_job(copied.workspace, documents, copied.models, copied.statistics, copied.recipe.quality).key


def test_a_damaged_file_is_named_by_the_processes_so_that_the_run_builds_it_again(processes, tmp_path):
    path = tmp_path / "in.parquet"
    table = pa.table({"text": [f"some text {index}" for index in range(500)]})
    write_table(table, path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"some text 250", b"some text 251"))
    with pytest.raises(DamagedFileError, match="checksum verification failed") as raised:
        processes.score(path)
    assert raised.value.path == str(path)


def test_a_missing_file_is_the_same_error_as_in_one_process(processes, tmp_path):
    with pytest.raises(FileNotFoundError):
        processes.score(tmp_path / "none.parquet")


def test_workers_continue_after_a_broken_page(processes, tmp_path):
    path = written(tmp_path / "in.parquet", [f"orbit {row}" for row in range(2000)], 5000)
    content = bytearray(path.read_bytes())
    at = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset
    content[at : at + 400] = bytes(400)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(content)
    with pytest.raises((ScoringError, OSError)) as raised:
        processes.score(broken)
    assert not is_transient(raised.value)
    assert processes.score(path).shape == (1, 2000)


def test_a_model_that_cannot_be_loaded_is_named(placed):
    wrong = placed.model_copy(update={"settings": placed.settings.model_copy(update={"positive_label": "__label__hq"})})
    with pytest.raises(ScoringError, match=r"no label '__label__hq', set positive_label to one of"):
        ScoringProcesses([wrong], 2)
    with pytest.raises(ScoringError, match=r"none\.bin cannot be opened"):
        ScoringProcesses([placed.model_copy(update={"path": "none.bin"})], 2)


def test_statistics_do_not_depend_on_the_processes(copied: Any) -> None:
    def fitted(processes: int) -> dict[str, Any]:
        job = statistics_job(copied.workspace, copied.documents, copied.models, copied.recipe.quality, processes)
        remove_file(job.manifest_path)
        return fit.fit_statistics(job).details

    assert fitted(2) == fitted(1)
    assert not list(copied.workspace.root.glob(".texts*"))


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_retry_after_a_killed_worker_starts_new_workers(built, tmp_path):
    path = written(tmp_path / "in.parquet", ["orbit"] * 5000, 500)
    whole = score_file(built.workspace, built.models, path, 2)
    [running] = _running.values()
    workers = children(running.server.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(ScoringProcessError, match=r"short of memory, lower engine\.score_processes") as raised:
        score_file(built.workspace, built.models, path, 2)
    assert is_transient(raised.value)
    assert running.server.returncode is not None
    assert not Path(f"/proc/{workers[1]}").exists()
    assert np.array_equal(whole, score_file(built.workspace, built.models, path, 2))


SCRIPT = """
import os, signal, sys
from pathlib import Path
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.inference.scoring_pool import ScoringProcesses

started = ScoringProcesses([QualityModel.model_validate_json(sys.argv[1])], 2)
server = started.server.pid
print(started.score(Path(sys.argv[2])).shape, flush=True)
print(server, Path(f"/proc/{server}/task/{server}/children").read_text(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_script_without_a_main_guard_leaves_no_process(placed, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    documents = written(tmp_path / "in.parquet", ["orbit"] * 2000, 500)
    command = [sys.executable, str(script), placed.model_dump_json(), str(documents)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    shape, processes = ran.stdout.splitlines()
    assert ran.returncode == -signal.SIGKILL
    assert shape == "(1, 2000)"
    assert len(processes.split()) == 3
    deadline = time.monotonic() + 30
    while any(is_running(int(process)) for process in processes.split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_close_leaves_no_process(placed):
    started = ScoringProcesses([placed], 3)
    workers = children(started.server.pid)
    started.close()
    assert started.server.returncode == 0
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_the_process_that_forks_has_one_thread(processes):
    assert len(list(Path(f"/proc/{processes.server.pid}/task").iterdir())) == 1


def test_few_rows_are_scored_in_one_process():
    assert useful_processes(ROWS_WORTH_PROCESSES - 1, 4) == 1
    assert useful_processes(ROWS_WORTH_PROCESSES, 4) == 4
    assert useful_processes(ROWS_WORTH_PROCESSES, 1) == 1
    assert useful_processes(ROWS_WORTH_PROCESSES, None) >= 1
