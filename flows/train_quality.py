"""Train a quality classifier as a flow; the same labels and settings are not trained again."""

from pathlib import Path

from prefect import flow

from fineweb_mask.flows.curate import RETRY_DELAYS
from fineweb_mask.flows.pipeline.failures import fails_in_one_line
from fineweb_mask.flows.pipeline.task_runs import TaskRuns
from fineweb_mask.models.settings.quality import TrainQualitySettings
from fineweb_mask.tasks.fit.train_quality import (
    TrainedMetrics,
    TrainQualityJob,
    remove_unfinished,
)


@flow(name="train-quality", flow_run_name="train {output}", cache_result_in_memory=False)
@fails_in_one_line
def train(output: str, settings: TrainQualitySettings) -> TrainedMetrics:
    """Train a classifier and return what it reaches on held-out labels.

    Parameters
    ----------
    output
        The model file to write; the manifest next to it shows whether it is current.
    settings
        The labels or the teacher, and how to train.

    Raises
    ------
    ValueError
        If the labels or the teacher cannot be used.
    """
    remove_unfinished(Path(output))
    task_runs = TaskRuns(RETRY_DELAYS, workers=1)
    trained = task_runs.submit([TrainQualityJob.of(Path(output), settings)])
    return TrainedMetrics.model_validate(trained.result().details)
