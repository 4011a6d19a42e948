"""Train a quality classifier as a flow; the same labels and settings are not trained again."""

from pathlib import Path

from prefect import flow

from fineweb_mask.models.settings.training import TrainQualitySettings
from fineweb_mask.tasks.fit.train_quality import (
    TrainedMetrics,
    TrainQualityJob,
    describe,
    remove_unfinished,
    train_quality,
)


@flow(name="train-quality", flow_run_name="train {output}", cache_result_in_memory=False)
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
    trained = train_quality.task.submit(job=TrainQualityJob.of(Path(output), settings))
    return describe(trained.result().details)
