"""Compare several selections under the same budget, side by side on one page."""

from typing import Any

from prefect.logging import get_run_logger

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.fit import fit_targets
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.pipeline.pages import published
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.base import Overrides
from fineweb_mask.tasks.comparison.page import ComparisonJob, check_label_column
from fineweb_mask.tasks.comparison.variants import (
    USUAL,
    RangesJob,
    Variant,
    VariantJob,
    left_out,
    missing_for,
    read_lambs,
    read_variants,
    reads_targets,
)
from fineweb_mask.tasks.selection.blocks import Groups, grouped
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.witness.documents import find_targets
from fineweb_mask.tasks.witness.job import WitnessJob
from fineweb_mask.tasks.workspace.job import recorded_seconds
from fineweb_mask.tasks.workspace.references import StageFile


class CompareSummary(PageSummary):
    """What a comparison found; `fineweb-mask compare --json` prints it."""

    selections: dict[str, dict[str, Any]]
    recommended_lamb: float | None


@as_flow("compare")
def compare(
    settings: PipelineSettings,
    variants: list[str] | None = None,
    lambs: str | None = None,
    label_column: str | None = None,
    targets: list[str] | None = None,
    overrides: Overrides | None = None,
) -> CompareSummary:
    """Select in several ways and write a page on what was chosen; the pipeline's own masks stay as they are.

    Parameters
    ----------
    settings
        The recipe: its documents, budget, metrics, lamb and seed are everybody's.
    variants
        Selectors, `all` for every one that has what it reads and does not take long; selectors with settings of their
        own, `mean_field[lamb=0.3]`; or Parquet files of ids that were selected elsewhere, `theirs=path.parquet`. Where
        omitted, DATAMASK's solvers and the baselines.
    lambs
        Weights of quality from 0 to 1 that mean_field selects by, too, of which one is recommended: `0,0.3,1` or
        `0:1:0.1` (from:to:step).
    label_column
        Column of the documents that holds known topics, of which the coverage is measured.
    targets
        Files of texts that should be predicted well, FILE or NAME=FILE, beside held-out documents of the corpus.
    overrides
        Settings instead of the recipe's, by section: `{"selection": {"lamb": 0.3}}`.

    Raises
    ------
    VariantError
        If a variant is not known, or the recipe has not what it reads.
    LabelColumnError
        If the documents have no such column of labels.
    BadShardError
        If there is nothing to select from.
    """
    settings = with_overrides(settings, overrides)
    asked = variants or USUAL
    every, frontier, label_column, files = check(settings, asked, lambs, label_column, targets or [])
    with start_run(settings, keep=False) as run:
        ready = prepare(run)
        common = {"root": run.root}
        solvers = [one.settings.solver for one in every]
        examples = fit_targets(run, ready.documents, ready.models) if reads_targets(solvers) else None
        groups = grouped(ready.shards, run.settings.selection.block_size)
        jobs, made = _select(run, groups, every, examples)
        masks = {name: [file for job in of for file in job.shard_files() or []] for name, of in jobs.items()}
        shards = [shard for group in groups for shard in group]
        alike = run.settings.selection.alike
        teaching = WitnessJob(page="compare", shards=shards, selections=masks, targets=files, threshold=alike, **common)
        took = recorded_seconds(run.workspace)
        job = ComparisonJob(
            variants=every,
            documents=[shard.documents for shard in shards],
            masks=masks,
            groups=made,
            seconds={name: sum(took.get(job.key.fingerprint, 0.0) for job in of) for name, of in jobs.items()},
            label_column=label_column,
            left_out=left_out(asked, missing_for(settings)),
            lambs=frontier,
            teaching=run.one(teaching),
            settings=run.settings.selection,
            **common,
        )
        found = run.one(job).details
        table = [{"selection": name, **figures} for name, figures in found["selections"].items()]
        note = f"The same budget of {run.settings.selection.budget_by}, selected in several ways."
        return published(CompareSummary, run, job.folder, table, note, **found)


def check(
    settings: PipelineSettings, variants: list[str], lambs: str | None, label_column: str | None, targets: list[str]
) -> tuple[list[Variant], dict[str, float], str | None, dict[str, list[SourceShard]]]:
    """Return the variants, those of the frontier with their lambs, the column of topics and the files of targets.

    They, and what the recipe names, are checked before any work.

    Raises
    ------
    SettingsError
        With the name of what is missing.
    """
    frontier = {f"mean_field[lamb={lamb:g}]": lamb for lamb in (() if lambs is None else read_lambs(lambs))}
    every = read_variants([*frontier, *variants], settings)
    shards = check_inputs(settings).shards
    return every, frontier, label_column and check_label_column(label_column, shards), find_targets(targets)


def _select(
    run: Run, groups: Groups, variants: list[Variant], examples: StageFile | None
) -> tuple[dict[str, list[VariantJob]], dict[str, list[StageFile]]]:
    """Select from every group of shards by every variant, one job at a time, because their times are compared."""
    jobs, made = dict[str, list[VariantJob]](), dict[str, list[StageFile]]()
    for variant in variants:
        get_run_logger().info("%s selects", variant.name)
        scaled = variant.settings.model_copy(update={"solver": "mean_field"})
        scaling = [RangesJob(root=run.root, shards=group, settings=scaled) for group in groups]
        ranges = run.all(scaling)  # those of equal objectives are there
        common = {"root": run.root, "settings": variant.settings, "targets": examples}
        jobs[variant.name] = [
            VariantJob(variant=variant, shards=group, ranges=one, **common)
            for group, one in zip(groups, ranges, strict=True)
        ]
        made[variant.name] = run.all(jobs[variant.name], at_once=1)
    return jobs, made
