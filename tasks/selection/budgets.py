"""Divide one budget among the blocks of a corpus at one dual price: measure each block's curve, then cut all at it.

`PriceJob` selects from the blocks of a group of shards at a few shares. `BudgetsJob` gathers what these reached, and
says how much each block gives (models/selection/budgets.py).
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.blocks import Block, BlocksJob, Group, InterimJob, block_key, call_with
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import read_stage_footer, write_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection.problem.normalisation import Ranges


class PriceJob(InterimJob, BlocksJob):
    """Measure what each block of a group of shards adds to the objective, by how much is selected from it."""

    stage: ClassVar[Stage] = Stage("price", version=3, label="select", folders=("prices",), interim=True)

    def settings_read(self) -> object:
        """Return all settings but the device and how blocks are cut."""
        return block_key(self.settings)


@stage_task
@same_threads()
def measure_curves(job: PriceJob) -> None:
    """Write what a few selections from every block reached."""
    from fineweb_mask.models.selection.budgets import Offer

    blocks = Group.read(job).blocks()
    offers = {block.name: asdict(call_with(block, Offer.of, job.settings)) for block in blocks}
    write_arrays(job.output, job.key, {}, {"offers": offers})


class BudgetsJob(InterimJob):
    """Divide the budget of the corpus among all its blocks."""

    stage: ClassVar[Stage] = Stage("budgets", version=1, label="select", folders=("budgets",), interim=True)
    name: ClassVar[str] = "budgets"
    uses_gpu: ClassVar[bool] = False
    prices: list[StageFile]

    def depends_on(self) -> Dependencies:
        """Return what was measured; the settings are in its key."""
        return Dependencies(settings=None, inputs=[file.fingerprint for file in self.prices])


@stage_task
@same_threads()
def divide_budget(job: BudgetsJob) -> None:
    """Write the dual price, every block's budget, and the scales that all blocks share."""
    from fineweb_mask.models.selection.budgets import Offer, common_scales, curve, divide

    found: dict[str, Any] = {}
    for file in job.prices:
        found |= read_details(job.workspace, file)["offers"]
    offers = {name: Offer.of_details(found[name]) for name in sorted(found)}
    if not offers:
        write_arrays(job.output, job.key, {}, {"budgets": {}})
        return
    scales = common_scales(list(offers.values()))
    total = round(job.settings.select_ratio * sum(offer.available for offer in offers.values()))
    price, budgets = divide([curve(offer, scales, job.settings) for offer in offers.values()], total)
    details = {
        "price": price,
        "total": total,
        "scales": asdict(scales),
        "budgets": dict(zip(offers, budgets, strict=True)),
    }
    write_arrays(job.output, job.key, {}, details)


def with_budget(
    settings: PipelineSelectionSettings, block: Block, divided: dict[str, Any]
) -> "tuple[PipelineSelectionSettings, Ranges]":
    """Return what is selected from a block, by the details that `divide_budget` wrote, and the scales by which."""
    from fineweb_mask.models.selection.budgets import scales_at
    from fineweb_mask.models.selection.problem.normalisation import Ranges

    budget = divided["budgets"][block.name]
    available = int(block.tokens.sum()) if settings.budget_by == "tokens" else len(block.rows)
    scales = scales_at(Ranges.of_details(divided["scales"]), settings.select_ratio * available / budget)
    return settings.model_copy(update={"budget": budget}), scales


def read_details(workspace: Workspace, file: StageFile) -> dict[str, Any]:
    """Return what is written in the footer of a file."""
    found = read_stage_footer(workspace.resolve(file))
    assert found is not None  # noqa: S101 - the file was built by a stage
    return found.details
