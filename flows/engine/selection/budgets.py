"""Divide one budget among all blocks at one price, by jobs that come before those that select."""

from collections.abc import Callable

from fineweb_mask.flows.engine.scheduler import Jobs, add_all
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.budgets import BudgetsJob, PriceJob
from fineweb_mask.tasks.selection.groups import Groups
from fineweb_mask.tasks.workspace.references import StageFile


def divide_budget(
    jobs: Jobs,
    root: str,
    groups: Groups,
    settings: PipelineSelectionSettings,
    select: Callable[[StageFile | None], None],
) -> None:
    """Call `select` with the budgets of all blocks: at once where all is selected by them; with None for one block."""
    prices = [PriceJob(root=root, shards=group, settings=settings) for group in groups]
    if sum(job.slices for job in prices) < 2:
        select(None)
        return
    budgets = BudgetsJob(root=root, settings=settings, prices=[job.reference() for job in prices])
    selections = [
        SelectJob(root=root, shards=group, settings=settings, budgets=budgets.reference()) for group in groups
    ]
    if all(jobs.done(job) is not None for job in selections):
        select(budgets.reference())
        return

    def on_measured(_prices: list[StageFile]) -> None:
        add_all(jobs, [budgets], lambda files: select(files[0]))

    add_all(jobs, prices, on_measured)
