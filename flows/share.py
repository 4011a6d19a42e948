"""Prepare a share of the shards, so that several machines fill one workspace without any engine.

Each machine prepares one share, at the same time as others or not; a run of the whole pipeline then selects and writes
the dataset. Duplicates are left out before a document is scored, and those of one share may be in another: so all
shares are ingested first, each by its machine.
"""

from typing import Literal

from fineweb_mask.flows.curate import ingest_shards, score_and_embed
from fineweb_mask.flows.pipeline.duplicates import find_duplicates, sketch_shards
from fineweb_mask.flows.pipeline.run import Share
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import PipelineSettings


@as_flow("share", "share {number} of {of} {settings.workspace}")
def prepare_share(
    settings: PipelineSettings, number: int, of: int, until: Literal["ingest"] | None = None
) -> list[StageSummary]:
    """Ingest every `of`-th shard, from the `number`-th on; then score and embed those of its documents that are kept.

    Each machine also ingests the sample that is fitted on, unless it is there; the first one to fit it is followed by
    the others. Where shards are compared, a machine that goes on ingests all that is not ingested yet.

    Parameters
    ----------
    settings
        The recipe.
    number
        Which share, from 1.
    of
        Number of shares.
    until
        "ingest" leaves out what reads the documents of other shares; None does all.
    """
    with start_run(settings, share=Share(number, of), keep=False) as run:
        reads_all = until is None and settings.ingest.compares_shards
        documents = ingest_shards(run, run.shards if reads_all else run.to_ingest)
        if until is None:
            score_and_embed(run, documents, find_duplicates(run, documents))
        else:
            sketch_shards(run, run.own(documents))
        return run.stages
