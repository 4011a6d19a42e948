"""Train a quality classifier as a flow: retried, and not trained again while labels and settings are the same."""

from pathlib import Path

from prefect import flow
from prefect.cache_policies import NO_CACHE

from fineweb_mask.models.settings.training import TrainQualitySettings
from fineweb_mask.tasks.train_quality import TrainedMetrics, describe, plan, train_quality_task


@flow(name="train-quality", flow_run_name="train {output}", cache_result_in_memory=False)
def train(output: str, settings: TrainQualitySettings) -> TrainedMetrics:
    """Train a classifier and return what it reaches on held-out labels.

    Parameters
    ----------
    output
        The model file to write; its manifest, beside it, is what says that it is up to date.
    settings
        The labels or the teacher, and how to train.

    Raises
    ------
    ValueError
        If the labels or the teacher cannot be used.
    """
    job = plan(Path(output), settings)
    task = train_quality_task.with_options(cache_policy=NO_CACHE, persist_result=False)
    return describe(task(job=job).details)
