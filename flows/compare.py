"""Compare several selections under the same budget, side by side on one page."""

from typing import Any, NamedTuple

from prefect.logging import get_run_logger

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.fit import fit_targets
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.start import published, start_run
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.settings import PipelineSettings
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
    split_variants,
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


class Asked(NamedTuple):
    """What a comparison is asked for, found and checked."""

    names: list[str]  # as they were asked for
    variants: list[Variant]  # with those of the frontier
    frontier: dict[str, float]  # their lambs
    label_column: str | None
    targets: dict[str, list[SourceShard]]


def compare(
    settings: PipelineSettings,
    variants: list[str] | None,
    lambs: str | list[float] | None,
    label_column: str | None,
    targets: list[str] | None,
) -> CompareSummary:
    """Select by every variant, and write the page; the parameters are those of `fineweb-mask compare`."""
    asked = check(settings, variants, lambs, label_column, targets)
    with start_run(settings, keep=False) as run:
        ready = prepare(run)
        common = {"root": run.root}
        solvers = [one.settings.solver for one in asked.variants]
        examples = fit_targets(run, ready.documents, ready.models) if reads_targets(solvers) else None
        groups = grouped(ready.shards, run.settings.selection.block_size)
        jobs, made = _select(run, groups, asked.variants, examples)
        masks = {name: [file for job in of for file in job.shard_files() or []] for name, of in jobs.items()}
        shards = [shard for group in groups for shard in group]
        alike = run.settings.selection.alike
        teaching = WitnessJob(
            page="compare", shards=shards, selections=masks, targets=asked.targets, threshold=alike, **common
        )
        took = recorded_seconds(run.workspace)
        job = ComparisonJob(
            variants=asked.variants,
            documents=[shard.documents for shard in shards],
            masks=masks,
            groups=made,
            seconds={name: sum(took.get(job.key.fingerprint, 0.0) for job in of) for name, of in jobs.items()},
            label_column=asked.label_column,
            left_out=left_out(asked.names, missing_for(settings)),
            lambs=asked.frontier,
            teaching=run.one(teaching),
            settings=run.settings.selection,
            **common,
        )
        found = run.one(job).details
        table = [{"selection": name, **figures} for name, figures in found["selections"].items()]
        note = f"The same budget of {run.settings.selection.budget_by}, selected in several ways."
        return published(CompareSummary, run, job.folder, table, note, **found)


def check(
    settings: PipelineSettings,
    variants: list[str] | None = None,
    lambs: str | list[float] | None = None,
    label_column: str | None = None,
    targets: list[str] | None = None,
) -> Asked:
    """Find what a comparison is asked for, and check it and what the recipe names before any work.

    Raises
    ------
    SettingsError
        With the name of what is missing.
    """
    names = [one for text in variants for one in split_variants(text)] if variants else USUAL
    weights = lambs if lambs is None or isinstance(lambs, str) else ",".join(map(str, lambs))
    frontier = {f"mean_field[lamb={lamb:g}]": lamb for lamb in (() if weights is None else read_lambs(weights))}
    every = read_variants([*frontier, *names], settings)
    shards = check_inputs(settings).shards
    column = label_column and check_label_column(label_column, shards)
    return Asked(names, every, frontier, column, find_targets(targets or []))


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
