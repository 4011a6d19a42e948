"""Train a quality classifier as a flow; the same labels and settings are not trained again."""

from pathlib import Path

from fineweb_mask.flows.pipeline.start import as_flow
from fineweb_mask.flows.pipeline.task_runs import TaskRuns
from fineweb_mask.models.settings.quality import TrainQualitySettings
from fineweb_mask.tasks.fit.train_quality import TrainedMetrics, TrainQualityJob, remove_unfinished


@as_flow("train-quality", "train {output}")
def train(output: str, settings: TrainQualitySettings, force: bool = False) -> TrainedMetrics:
    """Train a classifier and return what it reaches on held-out labels.

    Parameters
    ----------
    output
        The model file to write; the manifest next to it shows whether it is current.
    settings
        The labels, and how to train.
    force
        Whether files are replaced that no training wrote.

    Raises
    ------
    ValueError
        If the labels cannot be used.
    """
    remove_unfinished(Path(output))
    trained = TaskRuns(workers=1).submit([TrainQualityJob.of(Path(output), settings, force=force)])
    return TrainedMetrics.model_validate(trained.result().details)
