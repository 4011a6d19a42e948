"""Audit what a recipe's ingest and deduplication drop, on a sample of its source with planted cases."""

from typing import Any

from fineweb_mask.flows.curate import ingest_shards
from fineweb_mask.flows.pipeline.drawn import drawn_folder, narrowed
from fineweb_mask.flows.pipeline.duplicates import find_duplicates
from fineweb_mask.flows.pipeline.inputs import Inputs, find_inputs
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.selector_runs import published
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.flows.summary import CheckSummary
from fineweb_mask.models.settings import (
    FIRST_IN_FORM,
    Overrides,
    PipelineSettings,
)
from fineweb_mask.models.settings.engine import EngineSettings
from fineweb_mask.tasks.audit.audit import AuditJob
from fineweb_mask.tasks.audit.sample import BY_FILE, DOCUMENTS, check_sample, draw_source
from fineweb_mask.tasks.outputs import check_output
from fineweb_mask.tasks.registry import PIPELINE
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.removals import unwanted_of

STAGES_RUN = frozenset(task.stage.name for task in PIPELINE)


class AuditSummary(CheckSummary):
    """What an audit found; `fineweb-mask audit --json` prints it."""

    by: str
    steps: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    cases: list[dict[str, Any]]


@as_flow("audit")
def audit(
    settings: PipelineSettings,
    by: str | None = None,
    documents: int = DOCUMENTS,
    overrides: Overrides = FIRST_IN_FORM,
) -> AuditSummary:
    """Run the recipe's ingest and deduplication on a sample with planted cases, and write a page on what they drop.

    Parameters
    ----------
    settings
        The recipe.
    by
        Column of the source by whose values losses are counted. None: by file.
    documents
        About how many documents are drawn.
    overrides
        Settings instead of the recipe's, by section: `{"ingest": {"near_dedup": "minhash"}}`.

    Raises
    ------
    SettingsError
        If there are too few documents, or no such column.
    DataError
        If no document can be read, or the column has too many values.
    """
    settings = with_overrides(settings, overrides)
    found = check(settings, by, documents)
    with drawn_folder(found.workspace, "audit") as folder:
        draw_source(folder, found.shards, settings.source, settings.ingest, by, documents, unwanted_of(found.workspace))
        with start_run(narrowed(settings, folder), keep=False, scope=STAGES_RUN) as run:
            shards = dropped(run)
        local = settings.model_copy(update={"engine": EngineSettings(scratch=settings.engine.scratch)})
        with start_run(local, keep=False, scope=frozenset({AuditJob.stage.name})) as run:
            job = AuditJob(root=run.root, drawn=str(folder), shards=shards, settings=settings.ingest, by=by or BY_FILE)
            details = run.one(job).details
            table = [
                {
                    "step": step["step"],
                    "documents": step["came"],
                    "dropped": step["dropped"],
                    "alike": step["alike"] and round(step["alike"][0], 4),
                }
                for step in details["steps"]
            ]
            return published(AuditSummary, run, job.folder, table, "What every step drops.", **details)


def check(settings: PipelineSettings, by: str | None, documents: int) -> Inputs:
    """Check that all that the recipe names exists, and that the sample can be drawn; return what the recipe reads.

    Raises
    ------
    FinewebMaskError
        With what to change.
    """
    found = find_inputs(settings)
    if found.workspace.url is None:
        check_output(found.workspace.root, "workspace", replaces=True, folder=True)
    check_sample(found.shards, settings.source, by, documents)
    return found


def dropped(run: Run) -> list[ShardFiles]:
    """Ingest the drawn source and find its duplicates."""
    documents = ingest_shards(run)
    duplicates = find_duplicates(run, documents)
    return [ShardFiles(documents=file, duplicates=duplicates[name]) for name, file in documents.items()]
