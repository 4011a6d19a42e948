"""Prepare a share of the shards for selection, so that several machines fill one workspace without any engine.

Every machine runs one share, at the same time or not; a run of the whole pipeline then selects and writes the dataset.
"""

from prefect import flow

from fineweb_mask.flows.engine.session import open_session, rebuilds_damaged, runner
from fineweb_mask.flows.pipeline.choices import Share
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.workspace.job import fails_in_one_line


@flow(name="share", flow_run_name="share {number} of {of} {settings.workspace}", cache_result_in_memory=False)
@fails_in_one_line
@rebuilds_damaged
def prepare_share(settings: PipelineSettings, number: int, of: int) -> list[StageSummary]:
    """Ingest, score and embed every `of`-th shard, beginning with the `number`-th.

    Each machine also ingests the sample that is fitted on, unless it is there; the first one to fit it is followed by
    the others.

    Parameters
    ----------
    settings
        The recipe.
    number
        Which share, from 1.
    of
        Number of shares.
    """
    with open_session(settings, share=Share(number, of), keep=False) as session:
        plan = session.plan
        plan.ingest()
        plan.fit()
        plan.score()
        plan.embed()
        plan.sort_hashes()
        session.scheduler.finish()
        return session.scheduler.in_order


def run_share(settings: PipelineSettings, share: Share) -> list[StageSummary]:
    """Run the flow in this process with the recipe's engine."""
    return prepare_share.with_options(task_runner=runner(settings))(settings, share.number, share.of)
