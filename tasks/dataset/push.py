"""Push a dataset to the Hugging Face hub, only on a user's command.

It is verified first. `HfApi.upload_folder` uploads a large folder in several commits, and after an interruption only
what is missing. Files of earlier pushes that the dataset no longer has, according to the provenance record in the
repository, are deleted there. Other files in the repository are not touched.
"""

import glob
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from fineweb_mask.models.errors import FinewebMaskError, WorkspaceError
from fineweb_mask.models.urls import is_url, reject_credentials, require_writable
from fineweb_mask.tasks.dataset.verify import (
    BytesCallback,
    Dataset,
    find_dataset,
    is_of_the_hub,
    verify,
)
from fineweb_mask.tasks.storage.remote.copies import default_scratch, download_tree
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, read_manifest

if TYPE_CHECKING:
    from huggingface_hub import HfApi


Progress = Callable[[int], AbstractContextManager[BytesCallback]]
"""Shows how many bytes of so many are verified."""


class ChangedDatasetError(WorkspaceError):
    """A dataset differs from its provenance record."""


class PushError(FinewebMaskError, RuntimeError):
    """The dataset cannot be pushed."""


class Push(BaseModel):
    """The result of a push, or the plan of one."""

    status: Literal["pushed", "dry run"]
    repository: str
    revision: str
    url: str | None = None  # of the last commit
    files: dict[str, int]  # bytes by name
    bytes: int
    deleted: list[str] = []  # files of an earlier push
    others: list[str] = []  # files in the repository that are not part of the dataset


def push(
    place: str,
    repository: str,
    revision: str = "main",
    *,
    private: bool = False,
    dry_run: bool = False,
    show: bool = False,
    progress: Progress = lambda _: nullcontext(lambda _: None),
) -> Push:
    """Verify a dataset and upload it.

    Parameters
    ----------
    place
        Workspace or dataset: a folder, or a URL, from which it is downloaded first.
    repository, revision
        The dataset repository on the hub, `owner/name`, and its branch, which is made if it does not exist.
    private
        Whether the repository is private, if it is new.
    dry_run
        Whether only to verify, and to list the files; uses no network.
    show
        Whether the hub's client shows its progress on stderr.
    progress
        Shows the progress of the verification.

    Raises
    ------
    PushError
        If the name of the repository is none, the dataset has no licence, there is no token or no network, or the hub
        refuses.
    ChangedDatasetError
        If the dataset differs from its record.
    FinewebMaskError
        If there is none.
    """
    with _local(place) as dataset:
        plan = _planned(dataset, repository, revision)
        with progress(dataset.size) as advance:
            problems = verify(dataset, advance).problems
        if problems:
            raise ChangedDatasetError(
                f"{place} is not pushed: the dataset differs from its provenance.json: {problems[0].file}: "
                f"{problems[0].problem}: run its recipe again"
            )
        return plan if dry_run else _upload(Path(dataset.root), plan, private=private, show=show)


@contextmanager
def _local(place: str) -> Iterator[Dataset]:
    """Yield a dataset on this machine in the block; one at a URL is downloaded, and deleted at the end."""
    if is_url(place):
        require_writable(reject_credentials(place))  # a dataset on the hub need not be pushed
    dataset = find_dataset(place)
    if dataset.is_local:
        yield dataset
        return
    default_scratch().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="dataset-", dir=default_scratch()) as folder:
        download_tree(dataset.url, Path(folder))
        yield find_dataset(folder)


def _planned(dataset: Dataset, repository: str, revision: str) -> Push:
    """Return what a push would upload, without network access."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise PushError(f"{repository!r} is not the name of a repository on the hub: {error}") from error
    if repository.count("/") != 1:
        raise PushError(f"{repository!r} is not the name of a repository on the hub: it takes the form owner/name")
    if dataset.details.license is None:
        raise PushError(
            "the dataset's card names no licence: set materialize.license to that of its source, such as odc-by, and "
            "run again"
        )
    sizes = {name: file.bytes for name, file in dataset.manifest.files.items()}
    sizes[PROVENANCE] = Path(dataset.root, PROVENANCE).stat().st_size
    return Push(
        status="dry run",
        repository=repository,
        revision=revision,
        files=dict(sorted(sizes.items())),
        bytes=sum(sizes.values()),
    )


def _upload(folder: Path, plan: Push, *, private: bool, show: bool) -> Push:
    """Upload a verified dataset as planned."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if not show:
        disable_progress_bars()
    if get_token() is None:
        raise PushError("there is no token for the hub: set HF_TOKEN, or log in with `hf auth login`")
    api = HfApi(library_name="fineweb-mask")
    with _explained(plan.repository):
        api.create_repo(plan.repository, repo_type="dataset", private=private, exist_ok=True)
        if plan.revision != "main":
            api.create_branch(plan.repository, branch=plan.revision, repo_type="dataset", exist_ok=True)
        names = plan.files.keys()
        present = set(api.list_repo_files(plan.repository, repo_type="dataset", revision=plan.revision))
        stale = sorted(_pushed_before(api, plan, present) & (present - names))
        commit = api.upload_folder(
            repo_id=plan.repository,
            repo_type="dataset",
            folder_path=folder,
            revision=plan.revision,
            commit_message=f"Upload the dataset: {len(plan.files)} files, {plan.bytes:,} bytes",
            delete_patterns=[glob.escape(name) for name in stale],
        )
    others = sorted(name for name in present - names - set(stale) if not is_of_the_hub(name))
    return plan.model_copy(update={"status": "pushed", "url": commit.commit_url, "deleted": stale, "others": others})


def _pushed_before(api: "HfApi", plan: Push, present: set[str]) -> set[str]:
    """Return the files of earlier pushes, according to the provenance record in the repository."""
    if PROVENANCE not in present:
        return set()
    path = api.hf_hub_download(plan.repository, PROVENANCE, repo_type="dataset", revision=plan.revision)
    manifest = read_manifest(Path(path))
    return set() if manifest is None else set(manifest.files)


REFUSED = {
    401: "the hub does not know this token: set HF_TOKEN to a valid one, or log in with `hf auth login`",
    403: "the token may not write there: it needs write access, and the owner must be you or an organisation of yours",
    404: "there is no such repository, revision or owner, or the token may not see it",
}
"""What to do about an HTTP status of the hub."""


@contextmanager
def _explained(repository: str) -> Iterator[None]:
    """Turn errors of the hub's client into messages with a remedy."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = REFUSED.get(status, f"the hub refused: {error.server_message or error}")
        raise PushError(f"{repository}: {reason} (HTTP {status})") from error
    except OfflineModeIsEnabled as error:
        raise PushError("HF_HUB_OFFLINE is set: unset it to push") from error
    except Exception as error:  # releases of the client let errors of different HTTP libraries through
        raise PushError(
            f"{repository}: the upload to {constants.ENDPOINT} failed: {type(error).__name__}: {error}; "
            "run the same command again to resume"
        ) from error
