"""Verify a dataset and upload it to the Hugging Face hub, as a flow for a person who has read its report."""

from fineweb_mask.flows.pipeline.start import as_flow
from fineweb_mask.tasks.dataset.push import Push
from fineweb_mask.tasks.dataset.push import push as push_dataset


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
