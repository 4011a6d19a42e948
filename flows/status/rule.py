"""Export the rule of a workspace's selection, and apply it to other documents."""

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.run import Run, UnfinishedError
from fineweb_mask.flows.status.inspection import look_at
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.corpus.policy_file import Models, apply_rule, check_has_rule, export_rule
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.references import ShardFiles


class ExportedRule(BaseModel):
    """What `rule export` wrote; `--json` prints it."""

    output: str
    bytes: int
    objective: float
    upper_bound: float
    random_objective: float


class AppliedRule(BaseModel):
    """What `rule apply` wrote; `--json` prints it."""

    output: str
    documents: int
    selected: int
    left_out: int


def ready(found: Run) -> tuple[list[ShardFiles], Models]:
    """Return what a workspace's last run selected from, and the models that it fitted or was given.

    Raises
    ------
    SettingsError
        If it did not come so far, or its vectors are made by a scorer.
    """
    ready = None
    with suppress(UnfinishedError, BadShardError):
        ready = prepare(look_at(found.workspace, found.settings))
    if ready is None or ready.models.encoder is None:
        raise SettingsError(
            f"{found.workspace.address}: its last run has not fitted what scores and embeds documents, or embeds them "
            "by a scorer: run its recipe to the end, with an embedding.model of its own"
        )
    quality, encoder = ready.models.quality, ready.models.encoder
    return ready.shards, Models(
        found.workspace, found.settings, quality.scorers, quality.statistics, encoder.path, encoder.fingerprint
    )


def export_from(found: Run, output: Path) -> ExportedRule:
    """Write the rule of a workspace's selection.

    Raises
    ------
    SettingsError
        If it has none.
    """
    check_has_rule(found.settings)
    rules = [job.policy for job, file in found.found["select"] if file is not None and isinstance(job, SelectJob)]
    kept = next((rule for rule in rules if rule is not None), None)
    shards, models = ready(found)
    notes = export_rule(output, models, shards, kept)
    reached = {name: notes[name] for name in ("objective", "upper_bound", "random_objective")}
    return ExportedRule(output=str(output), bytes=output.stat().st_size, **reached)


def apply_to(found: Run, rule_file: Path, files: list[SourceShard], output: Path) -> AppliedRule:
    """Answer for the documents of files, by a rule and the models of the workspace that it is of.

    Raises
    ------
    SettingsError, BadShardError
        If the rule is of other models, or a file cannot be read.
    """
    answered = apply_rule(rule_file, files, output, ready(found)[1])
    return AppliedRule(output=str(output), **answered._asdict())
