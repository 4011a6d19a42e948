"""Export a dataset as files that trainers read: Parquet, or tokens.

An export is these files, with a card and a record, which replace the last one.
"""

from pathlib import Path
from typing import Any, ClassVar

from fineweb_mask.models.errors import FinewebMaskError, SettingsError, WorkspaceError
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.output import CARD, write_record
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
from fineweb_mask.tasks.outputs import check_output
from fineweb_mask.tasks.reporting.templating import render
from fineweb_mask.tasks.storage.atomic import atomic_folder, tree_files
from fineweb_mask.tasks.training_files import Tokenizer, load_step, write_files
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, is_product
from fineweb_mask.tasks.workspace.records.runs import code_and_packages
from fineweb_mask.tasks.workspace.references import file_digest

EXPORT, FOLDER = "export", "exports"
TOKENS = frozenset({".bin", ".ds"})
"""Endings of the files that hold nothing but tokens."""


class ExportJob(ProductJob):
    """Write the training files of one format."""

    stage: ClassVar[Stage] = Stage(EXPORT, version=4, folders=(FOLDER,))
    dataset: str  # digest of the dataset's content
    place: str  # folder or URL of the dataset
    settings: ExportSettings
    elsewhere: str | None = None  # folder of the files, if it is not the workspace's own

    @property
    def name(self) -> str:
        """The name of the export's folder."""
        return self.folder.name

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.workspace.root / FOLDER / self.settings.folder if self.elsewhere is None else Path(self.elsewhere)

    @property
    def manifest_path(self) -> Path:
        """The record of the files."""
        return self.folder / PROVENANCE

    def depends_on(self) -> Dependencies:
        """Return the settings, and the digests of the dataset and the tokenizer.

        Raises
        ------
        ModelNotFoundError
            If the tokenizer does not exist, or cannot be downloaded.
        """
        inputs = [self.dataset]
        if self.settings.holds_tokens:
            tokenizer = Tokenizer(self.settings)
            inputs += [file_digest(tokenizer.path), tokenizer.end_token]
        return Dependencies(
            settings=self.settings.model_dump(exclude={"name", "tokenizer", "end_token"}), inputs=inputs
        )


@stage_task
def export(job: ExportJob) -> None:
    """Write the files, with a card and a record.

    Raises
    ------
    SettingsError
        If the folder holds something else.
    ModelError
        If the tokenizer cannot be used, or the package that writes tokens is not installed.
    VerifyError
        If the dataset is not as its record says.
    WorkspaceError
        If the dataset is not the one that the job was planned for.
    """
    dataset = find_dataset(job.place)
    manifest = read_provenance(dataset)
    if manifest.content != job.dataset:
        raise WorkspaceError(f"the dataset at {job.place} changed while the run was going on: run again")
    settings, folder = job.settings, job.folder
    check_folder(folder, EXPORT, dataset.url)
    details: dict[str, Any] = {
        "rows": int(manifest.details["rows"]),
        "dataset": manifest.content,
        "settings": settings.model_dump(exclude={"tokenizer"}),
        **code_and_packages(),
    }
    with atomic_folder(folder) as new:
        write_files(dataset, manifest, settings, new, folder.with_name(f".{folder.name}.spill"))
        if settings.holds_tokens:
            tokenizer = Tokenizer(settings)
            size = sum(file.stat().st_size for file in new.iterdir() if file.suffix in TOKENS)
            details |= {
                "tokens": size // tokenizer.token_bytes,
                "token_bytes": tokenizer.token_bytes,
                "end_token": tokenizer.end_token,
                "tokenizer": settings.tokenizer if "/" not in str(settings.tokenizer) else tokenizer.path.name,
                "tokenizer_sha256": file_digest(tokenizer.path),
            }
        names = {  # what trainers are told to read
            "parquet": [file.name for file in tree_files(new)][:-1],
            "megatron": [file.stem for file in sorted(new.glob("*.idx"))],
            "nanotron": [],
        }
        card = render("export.md", settings=settings, details=details, names=names[settings.format])
        (new / CARD).write_text(card, encoding="utf-8")
        write_record(new, job.key, tree_files(new), details)


def check_format(settings: ExportSettings, where: str) -> None:
    """Check that the tokenizer of a format of tokens can be used, and that the package that writes it is installed.

    Raises
    ------
    SettingsError
        If not; the message begins with `where`.
    """
    try:
        if settings.holds_tokens:
            load_step(settings.format)
            _ = Tokenizer(settings).loaded
    except FinewebMaskError as error:
        raise SettingsError(f"{where}: {error}") from error


def check_folder(folder: Path, setting: str, dataset: str) -> None:
    """Check that an export of the dataset at a folder or URL may be written to a folder.

    Raises
    ------
    OutputError
        If something else would be lost, or the folder is in a workspace, but not in its folder of exports.
    """
    check_output(folder, setting, [dataset], replaces=is_product(folder, EXPORT), folder=True, within=FOLDER)
