"""Divide one budget among all blocks at one price, by jobs that come before those that select."""

from collections.abc import Callable

from fineweb_mask.flows.engine.scheduler import Jobs, add_all
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.budgets import BudgetsJob, PriceJob
from fineweb_mask.tasks.selection.groups import Groups


def divide_budget(
    jobs: Jobs,
    root: str,
    groups: Groups,
    settings: PipelineSelectionSettings,
    select: Callable[[list[SelectJob]], None],
) -> None:
    """Call `select` with the jobs that select from groups by the budgets of their blocks, when these are there.

    One block has the whole budget.
    """
    prices = [PriceJob(root=root, shards=group, settings=settings) for group in groups]
    if sum(job.slices for job in prices) < 2:
        select([SelectJob(root=root, shards=group, settings=settings) for group in groups])
        return
    budgets = BudgetsJob(root=root, settings=settings, prices=[job.reference() for job in prices])
    of_all = budgets.reference()
    selecting = [SelectJob(root=root, shards=group, settings=settings, budgets=of_all) for group in groups]
    if all(jobs.done(job) is not None for job in selecting):  # the budgets may have been removed
        select(selecting)
    else:
        add_all(jobs, prices, lambda _: add_all(jobs, [budgets], lambda _: select(selecting)))
