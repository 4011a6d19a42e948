"""Prepare a share of the shards, so that several machines fill one workspace without any engine.

Each prepares one share, at the same time as others or not; a run of the whole pipeline then selects and writes the
dataset.
"""

from fineweb_mask.flows.curate import embed_shards, ingest_shards, score_and_embed_shards, score_shards
from fineweb_mask.flows.pipeline.duplicates import sort_shards
from fineweb_mask.flows.pipeline.fit import fit_encoder, fit_quality
from fineweb_mask.flows.pipeline.run import Share
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import FROM_QUALITY, PipelineSettings


@as_flow("share", "share {number} of {of} {settings.workspace}")
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
    with start_run(settings, share=Share(number, of), keep=False) as run:
        documents = ingest_shards(run)
        quality, encoder, own = fit_quality(run, documents), fit_encoder(run, documents), run.own(documents)
        if settings.embedding.model == FROM_QUALITY:
            score_and_embed_shards(run, own, quality)
        else:
            score_shards(run, own, quality)
            embed_shards(run, own, encoder)
        sort_shards(run, own)
        return run.stages
