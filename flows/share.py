"""Prepare a share of the shards for selection, so that several machines fill one workspace without any engine.

Every machine runs one share, at the same time or not; a run of the whole pipeline then selects and writes the dataset.
"""

from prefect import flow

from fineweb_mask.flows.curate import RETRY_DELAYS, embed_shards, ingest_shards, score_and_embed_shards, score_shards
from fineweb_mask.flows.pipeline.choices import Share
from fineweb_mask.flows.pipeline.duplicates import sort_shards
from fineweb_mask.flows.pipeline.failures import fails_in_one_line
from fineweb_mask.flows.pipeline.fit import fit
from fineweb_mask.flows.pipeline.start import runner, start_run
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import FROM_QUALITY, PipelineSettings


@flow(name="share", flow_run_name="share {number} of {of} {settings.workspace}", cache_result_in_memory=False)
@fails_in_one_line
def prepare_share(settings: PipelineSettings, number: int, of: int) -> list[StageSummary]:
    """Ingest, score and embed every `of`-th shard, from the `number`-th on.

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
    with start_run(settings, retry_delays=RETRY_DELAYS, share=Share(number, of), keep=False) as run:
        documents = ingest_shards(run)
        models, own = fit(run, documents), run.own(documents)
        if settings.embedding.model == FROM_QUALITY:
            score_and_embed_shards(run, own, models.quality)
        else:
            score_shards(run, own, models.quality)
            embed_shards(run, own, models.encoder)
        sort_shards(run, own)
        return run.stages


def run_share(settings: PipelineSettings, share: Share) -> list[StageSummary]:
    """Run the flow in this process with the recipe's engine."""
    return prepare_share.with_options(task_runner=runner(settings))(settings, share.number, share.of)
