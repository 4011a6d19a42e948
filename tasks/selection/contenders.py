"""Select from every block by one of several selectors, and measure all selections in the same terms.

The ranges of the terms are found once for each block (`find_ranges`) and passed to every selector, so that all maximise
the same objective. The masks are written below `compare/`: those of the pipeline's run are unchanged. How long each
took is in a file next to its masks that nothing depends on.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.selection.problem.measures import relative_gap
from fineweb_mask.models.settings import PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.selection import METRICS, Unit
from fineweb_mask.models.settings.selectors.registry import SELECTORS, missing_inputs
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.reporting.page import Column, Table
from fineweb_mask.tasks.selection.blocks import (
    Block,
    BlocksJob,
    Group,
    Masks,
    block_key,
    block_settings,
    describe,
    select_block,
)
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.workspace.counts import mean_of
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, StageKey, digest

if TYPE_CHECKING:
    from fineweb_mask.models.selection.problem.measures import Measures
    from fineweb_mask.models.selection.problem.normalisation import Ranges

USUAL_SELECTORS = ["mean_field", "top_quality", "random", "quality_sampling", "semdedup", "greedy"]
"""Those compared unless others are named: all that read nothing but vectors and quality are `all`'s."""
ALL = "all"
"""Stands for every selector that can run and is not slow."""
FIGURES = {
    "selected": Column("selected", "count"),
    "mean_quality": Column("mean quality", "number"),
    **{name: Column(name, "number") for name in METRICS},
    "near_duplicates": Column("near-dup.", "share"),
    "effective_topics": Column("topics", "number"),
    "tokens": Column("tokens", "count"),
    "objective": Column("J", "number"),
    "gap": Column("gap", "gap"),
    "seconds": Column("seconds", "seconds"),
}
"""The columns that tables of selections are made of."""


class SelectorError(SettingsError):
    """A selector has no such name."""


def check_selectors(names: list[str], missing: Mapping[str, str] | None = None) -> list[str]:
    """Return the selectors, each once; `all` stands for those that have what they read and are not slow.

    Parameters
    ----------
    names
        The selectors.
    missing
        What selectors read that there is not, by their names.

    Raises
    ------
    SelectorError
        If there is none, or one is not known, or what one reads is missing.
    """
    missing = missing or {}
    found = list[str]()
    for name in names:
        if name == ALL:
            found += [one for one, entry in SELECTORS.items() if not entry.is_slow and one not in missing]
        elif name not in SELECTORS:
            raise SelectorError(f"selectors may be {', '.join([ALL, *SELECTORS])}, received {name!r}")
        elif name in missing:
            remedy = missing[name]
            raise SelectorError(f"selector {name}: {remedy}")
        else:
            found.append(name)
    if not found:
        raise SelectorError(f"name at least one selector: {', '.join([ALL, *SELECTORS])}")
    return list(dict.fromkeys(found))


def reads_targets(names: Iterable[str]) -> bool:
    """Return whether one of these selectors reads target examples, or compares texts with theirs."""
    return any(SELECTORS[name].reads & {"targets", "text"} for name in names)


def missing_for(settings: PipelineSettings) -> dict[str, str]:
    """Return what selectors read that a recipe does not provide, by their names."""
    has_targets = settings.selection.targets is not None
    found = {
        name: missing_inputs(name, has_targets=has_targets, scorers=len(settings.quality.scorers)) for name in SELECTORS
    }
    return {name: why for name, why in found.items() if why is not None}


def left_out(names: list[str], missing: Mapping[str, str]) -> dict[str, str]:
    """Return why each selector that `all` stands for is not run; nothing without `all`."""
    slow = {name: "it takes long: name it to run it" for name, entry in SELECTORS.items() if entry.is_slow}
    found = {**slow, **missing} if ALL in names else {}
    return {name: why for name, why in found.items() if name not in names}


def contested(settings: PipelineSelectionSettings, budget_by: Unit) -> PipelineSelectionSettings:
    """Return the settings that all contenders share: the recipe's, with its share as one of tokens or of documents.

    A recipe that gives a count, `budget`, stays as it is.
    """
    if settings.budget is not None or settings.budget_by == budget_by:
        return settings
    return settings.model_copy(update={"budget_by": budget_by, "weigh_by": None})


class RangesJob(ProductJob, BlocksJob):
    """Find the ranges of the terms over the blocks of a group of shards."""

    stage: ClassVar[Stage] = Stage("scale", version=2, folders=("compare/ranges",))

    @property
    def manifest_path(self) -> Path:
        """The file of the ranges."""
        return self.workspace.root / self.folder / f"{self.group}.{self.key.tag}.json"

    @property
    def solved(self) -> PipelineSelectionSettings:
        """The settings with the solver by which the ends of the ranges are found."""
        return self.settings.model_copy(update={"solver": "mean_field"})

    def settings_read(self) -> object:
        """Return the settings that the ranges depend on."""
        return block_key(self.solved, "lamb", "near_duplicates", "solver")


@stage_task
def find_ranges(job: RangesJob) -> None:
    """Write the ranges by which `normalize` scales the terms of every block."""
    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.selector import term_ranges

    device = choose_device(job.settings.device)
    found = {}
    for block in Group.read(job).blocks():
        with gpu_slot(device):
            ranges = term_ranges(
                block.vectors,
                block.quality,
                block_settings(job.settings, block),
                device=device,
                tokens=block.tokens,
            )
        found[block.name] = asdict(ranges)
    write_manifest(job.manifest_path, job.key, [], {"ranges": found})


def ranges_of(ranges: StageFile | None, block: Block) -> "Ranges | None":
    """Return the ranges of a block; None where there are none."""
    from fineweb_mask.models.selection.problem.normalisation import Ranges

    return None if ranges is None else Ranges.of_details(ranges.details["ranges"][block.name])


class TimedJob(BlocksJob):
    """Select from one group of shards with the ranges that all selectors share, and record how long it took."""

    ranges: StageFile | None  # of the group; None if they were not found

    @property
    def seconds_path(self) -> Path:
        """The record of how long it took."""
        return self.workspace.root / self.folder / f"{self.group}.{self.key.tag}.seconds.json"

    def depends_on(self) -> Dependencies:
        """Return what every selection depends on, and the ranges."""
        found = super().depends_on()
        return found._replace(inputs=[digest(found.inputs), None if self.ranges is None else self.ranges.fingerprint])


class ContenderJob(TimedJob):
    """Select from one group of shards, by the selector that a comparison calls `selector`."""

    stage: ClassVar[Stage] = Stage("contend", version=2, folders=("compare/masks", "probe/masks"))
    selector: str
    arm: str | None = None  # of the probe; None for the comparison

    @property
    def name(self) -> str:
        """The names of the selector, or of the arm, and of the group of shards."""
        return f"{self.arm or self.selector} {self.group}"

    @property
    def folder(self) -> str:
        """The folder of the masks."""
        of_compare, of_probe = self.stage.folders
        return f"{of_compare}/{self.selector}" if self.arm is None else f"{of_probe}/{self.arm}"

    @property
    def solved(self) -> PipelineSelectionSettings:
        """The settings with the selector's solver."""
        return self.settings.model_copy(update={"solver": self.selector})

    def settings_read(self) -> object:
        """Return all settings but the device and how blocks are cut."""
        return block_key(self.solved)


@stage_task
def run_selector(job: ContenderJob) -> None:
    """Write the masks of a group of shards, with every block's measures."""
    group = Group.read(job)
    masks, described, seconds = Masks(group), [], 0.0
    for block in group.blocks():
        started = time.perf_counter()
        selection = select_block(job.solved, block, ranges_of(job.ranges, block))
        seconds += time.perf_counter() - started
        masks.enter(block, selection)
        measured = measures_of(job, block).of(selection.indices)
        described.append(describe(block, selection) | {"measures": measured})
    note_seconds(job.seconds_path, job.key, {"seconds": seconds})
    masks.write(described)


def measures_of(job: BlocksJob, block: Block) -> "Measures":
    """Return what measures selections from a block, in means over what J is a mean over."""
    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.problem.measures import Measures

    device = choose_device(job.settings.device)
    tokens = block.tokens if job.settings.weighed_by == "tokens" else None
    return Measures(block.vectors, block.quality, device=device, tokens=tokens)


def note_seconds(path: Path, key: StageKey, seconds: dict[str, float]) -> None:
    """Note how long something took; masks hold no time, so that equal inputs give equal bytes."""
    with atomic_write(path) as partial:
        partial.write_text(json.dumps({"key": key.fingerprint, **seconds}) + "\n")


def noted_seconds(path: Path, key: StageKey) -> dict[str, float]:
    """Return what was noted for a job; nothing where the note is lost or of another job."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {} if found.pop("key", None) != key.fingerprint else found


def over_blocks(blocks: Sequence[Mapping[str, Any]], weighed_by: str = "documents") -> dict[str, Any]:
    """Return one selection's figures over all its blocks; the bound is None if a block has none.

    Averages over what is selected are weighted by its documents or tokens, all others by those of each block.
    """
    every, chosen = ("tokens", "tokens_selected") if weighed_by == "tokens" else ("documents", "selected")

    def measured(name: str, weight: str) -> float:
        return mean_of([block["measures"][name] for block in blocks], blocks, weight)

    bounds = [block["upper_bound"] for block in blocks]
    objective = mean_of([block["objective"] for block in blocks], blocks, every)
    random_objective = mean_of([block["random_objective"] for block in blocks], blocks, every)
    bound = None if None in bounds else mean_of(bounds, blocks, every)
    return {
        "selected": sum(block["selected"] for block in blocks),
        "mean_quality": measured("mean_quality", chosen),
        **{name: measured(name, every) for name in METRICS},
        "diversity": mean_of([block["terms"]["diversity"] for block in blocks], blocks, every),
        "near_duplicates": measured("near_duplicates", "selected"),
        "tokens": sum(block["tokens_selected"] for block in blocks),
        "objective": objective,
        "random_objective": random_objective,
        "upper_bound": bound,
        "gap": relative_gap(objective, bound, random_objective),
    }


def figure_names(settings: PipelineSelectionSettings, selections: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of a table of selections: of their documents and tokens, what the budget leaves unequal."""
    amount = "tokens" if len({one["selected"] for one in selections}) == 1 else "selected"
    return ["mean_quality", *settings.shown_metrics, "near_duplicates", "objective", "gap", amount, "seconds"]


def figures_table(
    title: str, label: Column, rows: Iterable[tuple[object, Mapping[str, Any]]], names: Iterable[str], note: str = ""
) -> Table:
    """Return a table of these figures of several selections, each of which has a label."""
    names = list(names)
    columns = [label, *(FIGURES[name] for name in names)]
    return Table(title, columns, [[of, *(one[name] for name in names)] for of, one in rows], note=note, wide=True)


def diversity_axis(settings: PipelineSelectionSettings) -> tuple[str, str]:
    """Return which figure of a selection a chart shows as its diversity, and the axis' label."""
    if len(settings.metric_weights) == 1:
        [name] = settings.metric_weights
        return name, METRICS[name].label
    return "diversity", "diversity: " + " + ".join(f"{w:g} {name}" for name, w in settings.metric_weights.items())


def described_settings(settings: PipelineSelectionSettings) -> str:
    """Return what all selections have in common, in a line."""
    weights = settings.metric_weights
    metrics = next(iter(weights)) if len(weights) == 1 else " + ".join(f"{w:g} {name}" for name, w in weights.items())
    term = settings.near_duplicates
    charge = "are forbidden" if term.forbid else f"have weight {term.weight:g}" if term.weight else "are not charged"
    budget = f"{settings.budget:,}" if settings.budget is not None else f"{settings.select_ratio:.4g}"
    return (
        f"Budget: {budget} of the {settings.budget_by} in each block. Means are over {settings.weighed_by}. "
        f"Diversity: {metrics}. Near-duplicates from cosine {term.threshold:g} {charge}. "
        f"Normalised by: {settings.normalize}. Seed: {settings.seed}."
    )
