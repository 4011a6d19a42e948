import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
from fineweb_mask.tasks.export import ExportJob, export
from fineweb_mask.tasks.workspace.manifest import read_manifest


def job_of(built, **changes):
    path = built.workspace.root / "dataset" / "provenance.json"
    settings = ExportSettings(**{"format": "parquet", "file_size": 2**16} | changes)
    return ExportJob(
        root=str(built.workspace.root), dataset=read_manifest(path).content, place=str(path.parent), settings=settings
    )


def test_it_is_made_once_for_a_dataset_and_its_settings_and_again_where_it_is_damaged(copied):
    job = job_of(copied)
    made = export(job)
    assert not made.cached
    assert made.rows == read_provenance(find_dataset(job.place)).details["rows"]
    assert export(job).cached
    assert not export(job_of(copied, seed=1)).cached
    assert not export(job).cached  # the other one is in its place
    assert not export(job_of(copied, name="other", seed=1)).cached
    assert export(job).cached
    assert sorted(path.name for path in (copied.workspace.root / "exports").iterdir()) == ["other", "parquet"]
    path = job.folder / "00000.parquet"
    before = path.read_bytes()
    path.write_bytes(before[:-1] + b"x")
    assert not export(job).cached
    assert path.read_bytes() == before
    with pytest.raises(WorkspaceError, match="changed while the run was going on"):
        export(job.model_copy(update={"dataset": "other"}))
