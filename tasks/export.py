"""Export the dataset of a workspace as files that trainers read: Parquet, tokens, or the shards of a library."""

from pathlib import Path
from typing import ClassVar

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.publish import PROVENANCE
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
from fineweb_mask.tasks.training_files.folder import EXPORT, dependencies_of, write_export
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

FOLDER = "exports"


class ExportJob(ProductJob):
    """Write the training files of one format."""

    stage: ClassVar[Stage] = Stage(EXPORT, version=1, folders=(FOLDER,), product=True, run_with=(EXPORT,))
    dataset: StageFile
    place: str  # folder or URL of the dataset
    settings: ExportSettings

    @property
    def name(self) -> str:
        """The name of the export's folder."""
        return self.settings.folder

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.workspace.root / FOLDER / self.name

    @property
    def manifest_path(self) -> Path:
        """The record of the files."""
        return self.folder / PROVENANCE

    def depends_on(self) -> Dependencies:
        """Return the settings, and the digests of the dataset and the tokenizer."""
        settings, inputs = dependencies_of(self.settings, self.dataset.fingerprint)
        return Dependencies(settings=settings, inputs=inputs)


@stage_task
def export(job: ExportJob) -> None:
    """Write the files, with a card and a record.

    Raises
    ------
    WorkspaceError
        If the dataset is not the one that the job was planned for.
    """
    dataset = find_dataset(job.place)
    manifest = read_provenance(dataset)
    if manifest.content != job.dataset.fingerprint:
        raise WorkspaceError(f"the dataset at {job.place} changed while the run was going on: run again")
    write_export(dataset, manifest, job.settings, job.folder, job.key)
