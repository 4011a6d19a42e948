"""Select from every block by one of several variants, and measure all selections in the same terms.

A variant is a selector of a comparison, or the solver at every weight of quality of a sweep. The
ranges of the terms are found once for each block (`find_ranges`) and passed to every variant, so that all maximise the
same objective. The masks are written below `compare/` or `sweep/`: those of the pipeline's run are unchanged.
How long each took is in a file next to its masks that nothing depends on.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.schemas import ROW
from fineweb_mask.models.settings import PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.selection import Unit
from fineweb_mask.models.settings.selectors.registry import SELECTORS, missing_inputs
from fineweb_mask.models.settings.validation import meant
from fineweb_mask.tasks.inference.gpu import torch_device
from fineweb_mask.tasks.selection.blocks import (
    Block,
    BlocksJob,
    Group,
    Masks,
    block_key,
    call_with,
    describe,
    select_block,
    write_shards,
)
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.remote.copies import read_text
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, digest

if TYPE_CHECKING:
    from fineweb_mask.models.selection.ranges import Ranges

USUAL_SELECTORS = ["mean_field", "top_quality", "random", "quality_sampling", "semdedup", "greedy"]
"""Those compared unless others are named: all that read nothing but vectors and quality are `all`'s."""
ALL = "all"
"""Stands for every selector that can run and is not slow."""


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
            every = [ALL, *SELECTORS]
            raise SelectorError(f"selectors may be {', '.join(every)}, received {name!r}{meant(name, every)}")
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


def shared_settings(settings: PipelineSelectionSettings, budget_by: Unit | None) -> PipelineSelectionSettings:
    """Return the settings that all variants share: the recipe's, with another unit of its share if asked.

    A recipe that gives a count, `budget`, stays as it is.
    """
    if settings.budget is not None or budget_by in {None, settings.budget_by}:
        return settings
    return settings.model_copy(update={"budget_by": budget_by})


class RangesJob(ProductJob, BlocksJob):
    """Find the ranges of the terms over the blocks of a group of shards."""

    stage: ClassVar[Stage] = Stage("scale", version=5, folders=("compare/ranges",))

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
        return block_key(self.solved, "lamb", "solver")


@stage_task
@same_threads()
def find_ranges(job: RangesJob) -> None:
    """Write the ranges by which `normalize` scales the terms of every block."""
    from fineweb_mask.models.selection.block import BlockSolver

    def ranges(*documents: Any, **options: Any) -> "Ranges":  # noqa: ANN401 - as `call_with` passes them
        return BlockSolver(*documents, **options).ranges

    found = {block.name: asdict(call_with(block, ranges, job.settings)) for block in Group.read(job).blocks()}
    write_manifest(job.manifest_path, job.key, [], {"ranges": found})


def ranges_of(ranges: StageFile, block: Block) -> "Ranges":
    """Return the ranges of a block."""
    from fineweb_mask.models.selection.ranges import Ranges

    return Ranges.of_details(ranges.details["ranges"][block.name])


class VariantJob(BlocksJob):
    """Select from one group of shards by one variant, with the ranges that all variants share."""

    stage: ClassVar[Stage] = Stage("contend", version=5, folders=("compare/masks", "sweep/masks"))
    selector: str
    lambs: tuple[float, ...] = ()  # the weights of quality of a sweep; without any, that of the settings
    ranges: StageFile  # of the group

    @property
    def name(self) -> str:
        """The names of the variant and of the group of shards."""
        return f"{'sweep' if self.lambs else self.selector} {self.group}"

    @property
    def folder(self) -> str:
        """The folder of the masks."""
        of_compare, of_sweep = self.stage.folders
        return of_sweep if self.lambs else f"{of_compare}/{self.selector}"

    @property
    def seconds_path(self) -> Path:
        """The record of how long it took."""
        return self.workspace.root / self.folder / f"{self.group}.{self.key.tag}.seconds.json"

    @property
    def solved(self) -> PipelineSelectionSettings:
        """The settings with the selector's solver."""
        return self.settings.model_copy(update={"solver": self.selector})

    def settings_read(self) -> object:
        """Return all settings but the device and how blocks are cut; of a sweep, with its weights of quality."""
        return [block_key(self.solved, "lamb"), self.lambs] if self.lambs else block_key(self.solved)

    def depends_on(self) -> Dependencies:
        """Return what every selection depends on, and the ranges."""
        found = super().depends_on()
        return found._replace(inputs=[digest(found.inputs), self.ranges.fingerprint])


@stage_task
def select_variant(job: VariantJob) -> None:
    """Write the masks of a group of shards, with every block's measures."""
    group = Group.read(job)
    if job.lambs:
        _sweep(job, group)
    else:
        _select(job, group)


def _select(job: VariantJob, group: Group) -> None:
    """Select once from every block."""
    masks, described, seconds = Masks(group), list[dict[str, Any]](), 0.0
    for block in group.blocks():
        started = time.perf_counter()
        selection = select_block(job.solved, block, ranges_of(job.ranges, block))
        seconds += time.perf_counter() - started
        masks.enter(block, selection)
        described.append(describe(block, selection) | {"measures": measured_in(job, block, selection.indices)})
    note_seconds(job, {"seconds": seconds})
    masks.write(described)


def _sweep(job: VariantJob, group: Group) -> None:
    """Select from every block at every weight of quality.

    A file holds the masks of all values, one column each, because every solve starts from the result of the last.
    """
    from fineweb_mask.models.comparison.sweep import sweep

    chosen = {lamb: np.zeros(len(group.columns.candidate), dtype=bool) for lamb in job.lambs}
    names = np.full(len(group.columns.candidate), None, dtype=object)
    described, seconds = list[dict[str, Any]](), dict.fromkeys(map(str, job.lambs), 0.0)
    for block in group.blocks():
        names[block.rows] = block.name
        swept = call_with(block, sweep, job.settings, job.lambs, ranges=ranges_of(job.ranges, block))
        for lamb, selection, spent in swept:
            chosen[lamb][block.rows[selection.indices]] = True
            seconds[str(lamb)] += spent
            about = {"lamb": lamb, "measures": measured_in(job, block, selection.indices)}
            described.append(describe(block, selection) | about)
    fields = [pa.field(f"lamb={lamb}", pa.bool_(), nullable=False) for lamb in job.lambs]

    def columns(rows: slice) -> list[pa.Array]:
        return [pa.array(names[rows], pa.string()), *(pa.array(mask[rows]) for mask in chosen.values())]

    note_seconds(job, seconds)
    write_shards(group, pa.schema([ROW, pa.field("block", pa.string()), *fields]), columns, described)


def measured_in(job: BlocksJob, block: Block, indices: NDArray[np.int64]) -> dict[str, float]:
    """Measure a selection (K,) from a block, in means over what J is a mean over."""
    from fineweb_mask.models.selection.measures import measured

    tokens = block.tokens if job.settings.budget_by == "tokens" else None
    return measured(block.vectors, block.quality, indices, device=torch_device(job.settings.device), tokens=tokens)


def note_seconds(job: VariantJob, seconds: dict[str, float]) -> None:
    """Record how long a job's selections took; masks hold no time, so that equal inputs give equal bytes."""
    with atomic_write(job.seconds_path) as partial:
        partial.write_text(json.dumps({"key": job.key.fingerprint, **seconds}) + "\n")


def noted_seconds(job: VariantJob) -> dict[str, float]:
    """Return the seconds that a job's selections took, of a sweep by value; nothing where the record is lost."""
    try:
        found: dict[str, Any] = json.loads(read_text(job.seconds_path))
    except (OSError, ValueError):
        return {}
    return {} if found.pop("key", None) != job.key.fingerprint else found
