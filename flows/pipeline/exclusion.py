"""List what other corpora and benchmarks hold, before ingest drops it."""

from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.tasks.exclusion import ExclusionJob
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.workspace.references import StageFile


def exclusion_lists(run: Run) -> dict[str, StageFile]:
    """Return the lists by the fields of an `IngestJob`; without `ingest.against` and `ingest.decontaminate`, none."""
    settings, lists = run.settings.ingest, dict[str, StageFile]()
    if settings.against:
        files = [file for path in settings.against for file in find_files(path, "ingest.against")]
        lists["known"] = run.one(ExclusionJob(root=run.root, of="known", files=files))
    if settings.decontaminate:
        files = [file for path in settings.decontaminate for file in find_files(path, "ingest.decontaminate")]
        lists["benchmarks"] = run.one(ExclusionJob(root=run.root, of="benchmarks", files=files))
    return lists
