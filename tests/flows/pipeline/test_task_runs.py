"""The Prefect task of a stage: its name, its retries, and the state of a job whose output is current."""

from pathlib import Path

from fineweb_mask.flows.pipeline.task_runs import TaskRuns
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
