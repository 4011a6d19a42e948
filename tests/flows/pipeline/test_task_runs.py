"""The Prefect task of a stage: its name, its retries, and the state of a job whose output is current."""

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fineweb_mask.flows.pipeline.task_runs import TaskRuns, in_one_line
from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.workspace.test_job import NumbersJob, numbers


def test_a_task_is_named_after_its_stage_and_retried(tmp_path: Path) -> None:
    task = TaskRuns(workers=1)._task_of(numbers)
    assert (task.name, task.task_run_name) == ("numbers", "{name}")
    assert (task.retries, task.retry_delay_seconds) == (2, [2.0, 8.0])
    found = task.fn([NumbersJob(root=str(tmp_path))], [], "numbers")
    state = task.fn([NumbersJob(root=str(tmp_path))], [], "numbers")
    assert (found.cached, state.name, state.is_completed()) == (False, "Cached", True)
    shown = task.fn([NumbersJob(root=str(tmp_path))], [found.model_copy(update={"cached": True})], "numbers")
    assert shown.name == "Cached"


class Answers:
    """A cluster whose jobs end at once: each with an output, or with an error."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def submit(self, _: NumbersJob) -> Future[Any]:
        future: Future[Any] = Future()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


def test_of_jobs_that_are_one_task_run_a_bad_shard_is_an_answer_and_a_bug_is_raised(tmp_path: Path) -> None:
    job = NumbersJob(root=str(tmp_path))
    file, damaged = numbers(job), BadShardError("b: damaged")
    together = TaskRuns(1, Answers(file, damaged, file), group=3)._task_of(numbers)  # type: ignore[arg-type]
    assert together.fn([job] * 3, [], "numbers a to c") == [file, damaged, file]
    runs = TaskRuns(1, group=3)
    runs._task_of = lambda _: SimpleNamespace(submit=lambda *_, **given: given["name"])  # type: ignore[assignment]
    assert [runs.submit([job] * count) for count in (1, 3)] == ["numbers shard", "numbers shard to shard"]
    with pytest.raises(TypeError, match="a bug"):
        TaskRuns(1, Answers(file, TypeError("a bug")))._task_of(numbers).fn([job] * 2, [], "a to b")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("labels are empty: add some"), "labels are empty: add some"),
        (FileNotFoundError(2, "No such file or directory", "a.parquet"), "a.parquet: No such file or directory"),
        (TypeError("a bug"), None),
        (OSError("without a number"), None),
    ],
)
def test_what_a_person_can_mend_is_the_state_s_message_and_its_result_and_a_bug_is_raised(error, message):
    @in_one_line
    def run(error: Exception) -> Any:
        """Run it."""
        raise error

    if message is None:
        with pytest.raises(type(error)):
            run(error)
        return
    state = run(error)
    assert (run.__doc__, state.is_failed(), state.message) == ("Run it.", True, message)
    with pytest.raises(type(error)):
        state.result()
