"""Select from every block by one of several variants, and measure all selections in the same terms.

A variant is a selector, with settings of its own if it is told some, or a list of ids that was selected elsewhere. The
ranges of the terms are found once for each block (`find_ranges`) and passed to every variant, so that all maximise the
same objective. The masks are written below `compare/`: those of the pipeline's run are unchanged.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.settings import PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS, missing_inputs
from fineweb_mask.models.settings.validation import meant, validated
from fineweb_mask.tasks.inference.gpu import torch_device
from fineweb_mask.tasks.selection.blocks import (
    Block,
    BlocksJob,
    Group,
    block_key,
    call_with,
    chosen_of,
    select_block,
)
from fineweb_mask.tasks.source.discovery import SourceShard, find_files
from fineweb_mask.tasks.source.opening import broken_files, open_parquet_source
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, digest

if TYPE_CHECKING:
    from fineweb_mask.models.selection.block import Selection
    from fineweb_mask.models.selection.objective import Ranges

USUAL = ["mean_field", "top_quality", "random", "quality_sampling", "semdedup", "greedy"]
"""Those compared unless others are named: all that read nothing but vectors and quality are `all`'s."""
ALL = "all"
"""Stands for every selector that can run and is not slow."""
SHARED = ("select_ratio", "budget", "budget_by", "block_size", "blocks", "groups", "device", "solver", "targets")
"""Settings that are the same for all variants, or that name one."""
ONE_OF_SEVERAL = re.compile(r"(?:\[[^\]]*\]|[^,\[\]])+")
FORM = re.compile(r"(?P<name>[\w-]+)=(?P<path>.+)|(?P<selector>[^\[\]]*)(?:\[(?P<options>.*)\])?")
LEAST_STEP = 0.005
"""Between weights of quality, each of which is a selection."""


class VariantError(SettingsError):
    """A variant cannot be run."""


class Variant(BaseModel):
    """One of the selections that are compared."""

    name: str
    settings: PipelineSelectionSettings  # whose solver selects
    files: list[SourceShard] = []  # with the ids that were selected elsewhere, if it is no selector

    @property
    def objective(self) -> str:
        """What identifies the objective that its J is of; a bound on J is one for all selections by the same."""
        return digest([block_key(self.settings.model_copy(update={"solver": "mean_field"}))])


def split_variants(text: str) -> list[str]:
    """Return the variants of one text, which commas separate outside of brackets.

    >>> split_variants("mean_field[lamb=0.3, metrics=disf], random,theirs=a.parquet")
    ['mean_field[lamb=0.3, metrics=disf]', 'random', 'theirs=a.parquet']
    """
    return [one.strip() for one in ONE_OF_SEVERAL.findall(text) if one.strip()]


def read_variants(asked: Sequence[str], recipe: PipelineSettings) -> list[Variant]:
    """Return variants, each once; `all` stands for the selectors that have what they read and are not slow.

    Parameters
    ----------
    asked
        SELECTOR, SELECTOR[KEY=VALUE, ...] with settings of `selection` of its own, or NAME=FILE: Parquet with a column
        `id`, of what was selected elsewhere.
    recipe
        Whose settings all others are.

    Raises
    ------
    VariantError
        If there is none, or one is not known, or what one reads is missing.
    """
    missing, found = missing_for(recipe), dict[str, Variant]()
    for text in asked:
        form = FORM.fullmatch(text)
        if form is None:
            raise VariantError(f"a variant is SELECTOR, SELECTOR[KEY=VALUE, ...] or NAME=FILE, received {text!r}")
        if form["path"]:
            found[form["name"]] = _from_file(form["name"], form["path"], recipe)
            continue
        names = [form["selector"]]
        if names == [ALL]:
            names = [one for one, entry in SELECTORS.items() if not entry.is_slow and one not in missing]
        for name in names:
            if name not in SELECTORS:
                every = [ALL, *SELECTORS]
                raise VariantError(f"selectors may be {', '.join(every)}, received {name!r}{meant(name, every)}")
            if name in missing:
                remedy = missing[name]
                raise VariantError(f"selector {name}: {remedy}")
            options = _options(text, form["options"] or "")
            settings = validated(PipelineSelectionSettings, recipe.selection.model_dump() | options | {"solver": name})
            label = name if text == ALL else text
            found[label] = Variant(name=label, settings=settings)
    if not found:
        raise VariantError(f"name at least one selector: {', '.join([ALL, *SELECTORS])}")
    return list(found.values())


def _options(variant: str, text: str) -> dict[str, Any]:
    """Return the settings in the brackets of a variant."""
    options = {}
    for one in filter(None, re.split(r",\s*(?![^{]*})", text)):
        key, equals, value = one.partition("=")
        if not equals or key in SHARED or key not in PipelineSelectionSettings.model_fields:
            known = [name for name in PipelineSelectionSettings.model_fields if name not in SHARED]
            raise VariantError(f"variant {variant}: it takes KEY=VALUE of {', '.join(known)}, received {one!r}")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise VariantError(f"variant {variant}: {value!r} must be valid YAML") from error
    return options


def _from_file(name: str, path: str, recipe: PipelineSettings) -> Variant:
    files = find_files(path, f"variant {name}")
    if name in SELECTORS or any(file.format != "parquet" for file in files):
        raise VariantError(f"variant {name}: it takes a name that no selector has, and Parquet files, received {path}")
    for file in files:
        with _opened(name, file) as opened:
            if "id" not in opened.schema_arrow.names:
                raise VariantError(f"variant {name}: {file.relative} must have a column 'id'")
    return Variant(name=name, settings=recipe.selection.model_copy(update={"solver": "random"}), files=files)


@contextmanager
def _opened(variant: str, file: SourceShard) -> Iterator[pq.ParquetFile]:
    broken = broken_files(lambda error: VariantError(f"variant {variant}: {file.relative}: {error}"))
    with broken, open_parquet_source(file.url) as opened:
        yield opened


def read_lambs(text: str) -> list[float]:
    """Return weights of quality in ascending order, of a list with commas or of from:to:step.

    Raises
    ------
    VariantError
        If a value is not a number from 0 to 1, or the step is too small.

    Examples
    --------
    >>> read_lambs("0:1:0.25"), read_lambs("0,0.3")
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.3])
    """
    values: list[float] = []
    with suppress(ValueError):
        if text.count(":") == 2:
            first, last, step = map(float, text.split(":"))
            if 0 <= first <= last <= 1 and step >= LEAST_STEP:
                values = [*np.arange(first, last, step).tolist(), last]
        else:
            values = [float(one) for one in text.split(",")]
    values = sorted({round(value, 9) + 0.0 for value in values})
    if not values or not all(0 <= value <= 1 for value in values):
        raise VariantError(
            f"--lambs takes numbers from 0 to 1, as 0:1:0.1 (from:to:step, at least {LEAST_STEP}) or 0,0.3,1, received "
            f"{text!r}"
        )
    return values


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


def left_out(asked: Sequence[str], missing: Mapping[str, str]) -> dict[str, str]:
    """Return why each selector that `all` stands for is not run; nothing without `all`."""
    slow = {name: "it takes long: name it to run it" for name, entry in SELECTORS.items() if entry.is_slow}
    found = {**slow, **missing} if ALL in asked else {}
    return {name: why for name, why in found.items() if name not in asked}


class RangesJob(ProductJob, BlocksJob):
    """Find the ranges of the terms over the blocks of a group of shards."""

    stage: ClassVar[Stage] = Stage("scale", version=7, folders=("compare/ranges",))

    @property
    def manifest_path(self) -> Path:
        """The file of the ranges."""
        return self.workspace.root / self.folder_name / f"{self.group}.{self.key.tag}.json"

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

    found = {block.name: call_with(block, ranges, job.settings) for block in Group(job).blocks()}
    write_manifest(job.manifest_path, job.key, [], {"ranges": found})


class VariantJob(BlocksJob):
    """Select from one group of shards by one variant, with the ranges of its objective."""

    stage: ClassVar[Stage] = Stage("contend", version=8, folders=("compare/masks",))
    variant: Variant
    ranges: StageFile  # of the group

    @property
    def name(self) -> str:
        """The names of the variant and of the group of shards."""
        return f"{self.variant.name} {self.group}"

    @property
    def folder_name(self) -> str:
        """The folder of the masks."""
        own = self.variant.name if self.variant.files else self.settings.solver
        return f"{self.stage.folders[0]}/{own}"

    def settings_read(self) -> object:
        """Return all settings but the device and how blocks are cut."""
        return block_key(self.settings)

    def depends_on(self) -> Dependencies:
        """Return what every selection depends on, the ranges, and ids that were selected elsewhere."""
        found, ids = super().depends_on(), [file.fingerprint for file in self.variant.files]
        return found._replace(inputs=[digest(found.inputs), self.ranges.fingerprint, *ids])


@stage_task
def select_variant(job: VariantJob) -> None:
    """Write the masks of a group of shards, with every block's measures."""
    from fineweb_mask.models.selection.measures import measured
    from fineweb_mask.models.selection.objective import Term

    group, given, device = Group(job), _given(job), torch_device(job.settings.device)
    for block in group.blocks():
        ranges = {name: Term(*term) for name, term in job.ranges.details["ranges"][block.name].items()}
        selection = (
            select_block(job.settings, block, ranges)
            if given is None
            else _taken(job.settings, block, ranges, given[block.rows])
        )
        measures = None
        if selection is not None:  # in means over what J is a mean over
            tokens = block.tokens if job.settings.budget_by == "tokens" else None
            measures = measured(block.vectors, block.quality, selection.indices, device=device, tokens=tokens)
        group.enter(chosen_of(block, selection, measures=measures))
    group.write()


def _given(job: VariantJob) -> NDArray[Any] | None:
    """Return which documents of a group of shards were selected elsewhere, (n,); None for a selector."""
    if not job.variant.files:
        return None
    found = []
    for file in job.variant.files:
        with _opened(job.variant.name, file) as opened:
            found.append(opened.read(columns=["id"])["id"].cast(pa.string()).combine_chunks())
    ids = pa.concat_arrays(found)
    columns = [read_table(job.workspace.resolve(shard.documents), columns=["id"])["id"] for shard in job.shards]
    own = pa.chunked_array([chunk for column in columns for chunk in column.cast(pa.string()).chunks], pa.string())
    return np.asarray(pc.is_in(own, value_set=ids).to_numpy(), dtype=bool)


def _taken(
    settings: PipelineSelectionSettings, block: Block, ranges: "Ranges", taken: NDArray[Any]
) -> "Selection | None":
    """Return what was selected elsewhere from a block, (n,) bool, as a selection of a budget that it fills."""
    import torch

    from fineweb_mask.models.selection.block import BlockSolver, Selection
    from fineweb_mask.models.selection.solvers.problem import Solution

    if not taken.any():
        return None
    budget = int(block.tokens[taken].sum() if settings.budget_by == "tokens" else taken.sum())

    def judged(*documents: Any, **options: Any) -> Selection:  # noqa: ANN401 - as `call_with` passes them
        solver = BlockSolver(*documents, **options)
        mask = torch.from_numpy(taken).to(solver.quality.device)
        return solver.selection(Solution(mask, mask.float()))

    return call_with(block, judged, settings.model_copy(update={"budget": budget}), ranges=ranges)
