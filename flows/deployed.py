"""Define the flows that deployments run: those of commands, and two that need no workspace."""

from pathlib import Path

from fineweb_mask.flows.commands.compare import compare as compare_selections
from fineweb_mask.flows.commands.compare import tune as search_settings
from fineweb_mask.flows.commands.run import curate as run_pipeline
from fineweb_mask.flows.pipeline.start import as_flow
from fineweb_mask.models.settings.quality import TrainQualitySettings
from fineweb_mask.tasks.dataset.push import Push
from fineweb_mask.tasks.dataset.push import push as push_dataset
from fineweb_mask.tasks.train_quality import TrainedMetrics, check_training, train_quality

curate, compare, tune = run_pipeline.flow, compare_selections.flow, search_settings.flow


@as_flow("push", "push {dataset} to {repository}")
def push(dataset: str, repository: str, private: bool = True, revision: str = "main", dry_run: bool = False) -> Push:
    """Verify a dataset and upload it to the Hugging Face hub; the token is the worker's HF_TOKEN.

    Parameters
    ----------
    dataset
        Workspace or dataset: a folder, or a URL.
    repository
        Dataset repository on the hub, `owner/name`.
    private
        Whether the repository is private, if it is new.
    revision
        Branch to commit to; created if it does not exist.
    dry_run
        Whether only to verify, and to list the files; uses no network.

    Raises
    ------
    FinewebMaskError
        If there is no whole dataset, or the hub refuses.
    """
    return push_dataset(dataset, repository, revision, private=private, dry_run=dry_run)


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
