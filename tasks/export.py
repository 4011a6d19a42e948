"""Export a dataset as files that trainers read: Parquet, tokens, or the shards of a library."""

from pathlib import Path
from typing import ClassVar

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings.output import TOKENIZED, ExportSettings
from fineweb_mask.tasks.dataset.output import PROVENANCE
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
from fineweb_mask.tasks.training_files.folder import EXPORT, write_export
from fineweb_mask.tasks.training_files.formats import Tokenizer
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import file_digest

FOLDER = "exports"


class ExportJob(ProductJob):
    """Write the training files of one format."""

    stage: ClassVar[Stage] = Stage(EXPORT, version=1, folders=(FOLDER,), product=True, run_with=(EXPORT,))
    dataset: str  # digest of the dataset's content
    place: str  # folder or URL of the dataset
    settings: ExportSettings
    output: str | None = None  # folder of the files, if it is not the workspace's own

    @property
    def name(self) -> str:
        """The name of the export's folder."""
        return self.folder.name

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.workspace.root / FOLDER / self.settings.folder if self.output is None else Path(self.output)

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
        if self.settings.format in TOKENIZED:
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
    WorkspaceError
        If the dataset is not the one that the job was planned for.
    """
    dataset = find_dataset(job.place)
    manifest = read_provenance(dataset)
    if manifest.content != job.dataset:
        raise WorkspaceError(f"the dataset at {job.place} changed while the run was going on: run again")
    write_export(dataset, manifest, job.settings, job.folder, job.key)
