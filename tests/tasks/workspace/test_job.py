"""A job is built once, under the key of what it declares; bad data of a shard is told from bugs."""

import zlib
from typing import ClassVar

import pyarrow as pa
import pytest

from fineweb_mask.models.errors import DataError, WorkspaceError
from fineweb_mask.tasks.workspace.job import (
    BadShardError,
    Dependencies,
    Stage,
    StageJob,
    StageTask,
    record_seconds,
    recorded_seconds,
    stage_task,
)
from fineweb_mask.tasks.workspace.references import StageKey, digest
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer

SCHEMA = pa.schema([pa.field("row", pa.uint32())])


class NumbersJob(StageJob):
    """Write three numbers."""

    stage: ClassVar[Stage] = Stage("numbers", version=1, folders=("numbers",))
    settings: str = "one"
    forgotten: str = ""  # changes the output and is in no key

    @property
    def name(self):
        return "shard"

    def depends_on(self):
        return Dependencies(settings=self.settings, inputs="none")


def write(job, key=None):
    with stage_file_writer(job.output, SCHEMA, key or job.key) as writer:
        writer.write(pa.record_batch([pa.array([0, 1, 2], pa.uint32())], schema=SCHEMA))


@stage_task
def numbers(job: NumbersJob) -> None:
    """Write the numbers."""
    write(job)


def test_the_key_is_what_the_job_declares(tmp_path):
    job = NumbersJob(root=str(tmp_path))
    expected = StageKey(stage="numbers", version=1, settings=digest("one"), inputs=digest("none"))
    assert job.key == NumbersJob(root="elsewhere", forgotten="x").key == expected
    assert job.model_copy(update={"settings": "two"}).key != job.key


def test_an_output_is_built_once_for_its_key(tmp_path):
    job = NumbersJob(root=str(tmp_path))
    first = numbers(job)
    written = job.output.stat().st_mtime_ns
    second, forced = numbers(job), numbers(job.model_copy(update={"force": True}))
    assert (first.cached, second.cached, forced.cached) == (False, True, False)
    assert job.output.stat().st_mtime_ns > written
    assert first.seconds > 0
    assert (first.rows, first.path) == (3, f"numbers/shard.{job.key.tag}.parquet")
    assert first.model_copy(update={"seconds": 0.0, "cached": True}) == second
    other = job.model_copy(update={"settings": "two"})
    assert [numbers(one).cached for one in (other, job, other)] == [False, True, True]
    assert job.model_copy(update={"settings": "three"}).current() is None


def test_an_output_that_is_not_current_after_building_is_an_error(tmp_path):
    @stage_task
    def wrong(job: NumbersJob) -> None:
        write(job, job.model_copy(update={"settings": "another"}).key)

    with pytest.raises(WorkspaceError, match="numbers shard"):
        wrong(NumbersJob(root=str(tmp_path)))


def test_seconds_are_recorded_for_the_key(tmp_path):
    job = NumbersJob(root=str(tmp_path))
    assert recorded_seconds(job.workspace) == {}
    for one, seconds in ((job, 9.0), (job.model_copy(update={"settings": "two"}), 2.0), (job, 1.5)):
        record_seconds(one, seconds)
    assert sorted(recorded_seconds(job.workspace).values()) == [1.5, 2.0]
    assert recorded_seconds(job.workspace)[job.key.fingerprint] == 1.5  # the last
    with job.workspace.seconds.open("a") as file:
        file.write("half of a li")  # of a run that was killed
    assert recorded_seconds(job.workspace)[job.key.fingerprint] == 1.5


class OfOneShardJob(NumbersJob):
    """Write three numbers of a shard that can be left out."""

    stage: ClassVar[Stage] = Stage("of_one_shard", version=1, folders=("numbers",), per_shard=True)


def failing(kind, error):
    def build(job: NumbersJob) -> None:
        raise error

    build.__annotations__["job"] = kind
    return StageTask(build)


BAD_DATA = [pa.ArrowInvalid("wrong"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), EOFError("cut")]
BAD_DATA += [zlib.error("damaged"), MemoryError(), OverflowError("large"), RecursionError("deep"), DataError("wrong")]


def test_what_the_data_of_one_shard_causes_is_a_bad_shard(tmp_path):
    for error in BAD_DATA:
        with pytest.raises(BadShardError, match=rf"^shard: {type(error).__name__}: ") as caught:
            failing(OfOneShardJob, error)(OfOneShardJob(root=str(tmp_path)))
        assert caught.value.__cause__ is error
        with pytest.raises(type(error)) as raised:  # of no single shard
            failing(NumbersJob, error)(NumbersJob(root=str(tmp_path)))
        assert raised.value is error


def test_a_bug_and_what_the_machine_causes_are_no_bad_shard(tmp_path):
    for error in (TypeError("bug"), KeyError("bug"), WorkspaceError("held"), TimeoutError(), OSError("disk")):
        with pytest.raises(type(error)) as raised:
            failing(OfOneShardJob, error)(OfOneShardJob(root=str(tmp_path)))
        assert raised.value is error
