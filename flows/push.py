"""Verify a dataset and upload it to the Hugging Face hub, as a flow for a person who has read its report."""

from pathlib import Path

from fineweb_mask.flows.pipeline.start import as_flow
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.dataset.push import Push, local_dataset, planned
from fineweb_mask.tasks.dataset.push import push as push_dataset
from fineweb_mask.tasks.dataset.verify import read_provenance, verify


class ChangedDatasetError(WorkspaceError):
    """A dataset differs from its provenance record."""


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
    with local_dataset(dataset) as found:
        manifest = read_provenance(found)
        done = planned(Path(found.root), manifest, repository, revision)
        if problems := verify(found, manifest).problems:
            first = f"{problems[0].file}: {problems[0].problem}"
            raise ChangedDatasetError(f"{dataset} is not pushed, it differs from its record: {first}: run it again")
        if not dry_run:
            done = push_dataset(Path(found.root), done, private=private)
    return done
