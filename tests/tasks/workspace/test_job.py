"""What every stage shares: build once, retry only what may pass."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.workspace.job import BadShardError, ShardJob, build_once, is_transient, stage_task
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import StageKey

SCHEMA = pa.schema([pa.field("row", pa.uint32())])


class NumbersJob(ShardJob):
    """Writes three numbers."""

    folder = "numbers"


def make_job(workspace: Path, settings: str = "one") -> NumbersJob:
    key = StageKey(stage="numbers", version=1, settings=settings, inputs="none")
    return NumbersJob(root=str(workspace), name="shard", key=key)


def write(job: NumbersJob, key: StageKey | None = None) -> None:
    with stage_file_writer(job.output, SCHEMA, key or job.key) as writer:
        writer.write(pa.record_batch([pa.array([0, 1, 2], pa.uint32())], schema=SCHEMA))


class ServerAnswer(Exception):  # noqa: N818
    """An HTTP error as client libraries raise it."""

    def __init__(self, status_code: int) -> None:
        self.response = SimpleNamespace(status_code=status_code)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("slow"),
        ConnectionResetError("reset"),
        OSError(errno.EIO, "disk"),
        OSError(errno.ESTALE, "network share"),
        ServerAnswer(500),
        ServerAnswer(503),
        torch.OutOfMemoryError("no memory for one text"),
    ],
)
def test_errors_that_may_pass_are_transient(error: BaseException) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        BadShardError("broken"),
        ValueError("wrong"),
        FileNotFoundError(errno.ENOENT, "gone"),
        OSError(errno.ENOSPC, "full"),
        OSError("no number"),
        ServerAnswer(404),
        KeyboardInterrupt(),
        WorkspaceError("held"),
    ],
)
def test_errors_that_stay_are_not_transient(error: BaseException) -> None:
    assert not is_transient(error)


def test_an_output_is_built_once(tmp_path: Path) -> None:
    job, builds = make_job(tmp_path), []

    def build() -> None:
        builds.append(1)
        write(job)

    first, second = build_once(job, build), build_once(job, build)
    assert len(builds) == 1
    assert (first.cached, second.cached) == (False, True)
    assert first.seconds > 0
    assert (first.rows, first.path) == (3, "numbers/shard.parquet")
    assert first.model_copy(update={"seconds": 0.0, "cached": True}) == second


def test_another_key_builds_anew(tmp_path: Path) -> None:
    for settings in ("one", "two"):
        job = make_job(tmp_path, settings)
        file = build_once(job, lambda job=job: write(job))
        assert not file.cached
    assert make_job(tmp_path, "one").current() is None


def test_an_output_that_does_not_agree_is_an_error(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    with pytest.raises(WorkspaceError, match="numbers shard"):
        build_once(job, lambda: write(job, make_job(tmp_path, "another").key))


def test_a_task_caches_on_the_key_and_keeps_json(tmp_path: Path) -> None:
    def count(job: NumbersJob) -> None:
        """Count."""

    task = stage_task(count)
    policy = task.cache_policy
    keys = [policy.compute_key(None, {"job": make_job(folder)}, {}) for folder in (tmp_path, tmp_path / "elsewhere")]
    assert keys[0] == keys[1] == make_job(tmp_path).key.cache_key
    assert policy.compute_key(None, {"job": make_job(tmp_path, "two")}, {}) != keys[0]
    assert (task.name, task.result_serializer, task.persist_result) == ("count", "json", True)
