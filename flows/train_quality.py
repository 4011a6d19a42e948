"""Train a quality classifier as a flow."""

from pathlib import Path

from fineweb_mask.flows.pipeline.start import as_flow
from fineweb_mask.models.settings.quality import TrainQualitySettings
from fineweb_mask.tasks.train_quality import TrainedMetrics, check_training, train_quality


@as_flow("train-quality", "train {output}")
def train(output: str, settings: TrainQualitySettings, force: bool = False) -> TrainedMetrics:
    """Train a classifier and return what it reaches on held-out labels.

    Parameters
    ----------
    output
        The model file to write; its metrics are written next to it.
    settings
        The labels, and how to train.
    force
        Whether files that are there are replaced.

    Raises
    ------
    ValueError
        If the labels cannot be used.
    """
    check_training(Path(output), settings, force=force)
    return train_quality(Path(output), settings)
