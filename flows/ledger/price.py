"""Price files that may join a workspace's corpus, by a sample of them."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fineweb_mask.flows.curate import embed_shards, ingest_shards, prepare, score_and_embed_shards, score_shards
from fineweb_mask.flows.pipeline.drawn import drawn_folder, narrowed
from fineweb_mask.flows.pipeline.duplicates import find_duplicates
from fineweb_mask.flows.pipeline.fit import Models
from fineweb_mask.flows.pipeline.run import MissingInputError, PerShard, Run, UnfinishedError
from fineweb_mask.flows.pipeline.selection import Prepared, prepared
from fineweb_mask.flows.pipeline.selector_runs import published
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.ledger.price import Rate
from fineweb_mask.models.settings import (
    FROM_QUALITY,
    PipelineSettings,
    ReportSettings,
)
from fineweb_mask.models.settings.engine import EngineSettings
from fineweb_mask.tasks.audit.sample import WORKSPACE
from fineweb_mask.tasks.dedup.sort import SortJob, sort_rows
from fineweb_mask.tasks.ledger.candidate import SAMPLE, draw, find_candidate
from fineweb_mask.tasks.ledger.price import CandidateJob
from fineweb_mask.tasks.ledger.price_page import lines
from fineweb_mask.tasks.registry import PIPELINE
from fineweb_mask.tasks.workspace.job import recorded_seconds
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile

"""That of the sample, in its folder."""
STAGES_RUN = frozenset(task.stage.name for task in PIPELINE)
PREPARED = ("ingest", "score", "embed", "score_embed")
"""Stages that the whole candidate would go through, document by document."""


class PriceSummary(PageSummary):
    """What a candidate would add; `fineweb-mask price --json` prints it."""

    sample: int
    fraction: float
    near_by: str
    estimates: dict[str, list[float] | None]  # each value with the ends of its interval
    reasons: dict[str, int]
    copies: int
    clusters: list[dict[str, Any]]
    is_own_rate: bool
    remarks: list[str]


class _Ours(NamedTuple):
    """What a finished workspace has."""

    shards: list[ShardFiles]
    signatures: list[StageFile]
    models: Models  # with paths that any workspace may use
    rates: list[Rate]


@as_flow("price")
def price(settings: PipelineSettings, files: list[str], sample: int = SAMPLE) -> PriceSummary:
    """Estimate what share of new files would be selected, and what they would add and cost; nothing joins the corpus.

    Parameters
    ----------
    settings
        The recipe of the workspace, which has been run.
    files
        Files, folders or URLs of the candidate, with the columns of the recipe's source.
    sample
        Documents that are drawn from the candidate.

    Raises
    ------
    SettingsError
        If the workspace has no scores and vectors, there is no such file, or the sample is too small.
    DataError
        If no document can be read, or too few are left.
    """
    candidate = find_candidate(files, settings, sample)
    with start_run(settings, keep=False, scope=frozenset({SortJob.stage.name})) as run:
        ours = _ours(run)
    with drawn_folder(run.workspace, "price") as folder:
        drawn = draw(folder, candidate, settings.source, sample)
        with start_run(_narrowed(settings, folder), keep=False, scope=STAGES_RUN) as run:
            theirs = _sampled(run, ours.models)
            rates = _rates(run)
        local = settings.model_copy(update={"engine": EngineSettings(scratch=settings.engine.scratch)})
        with start_run(local, keep=False, scope=frozenset({CandidateJob.stage.name})) as run:
            job = CandidateJob(
                root=run.root,
                sample=str(folder / WORKSPACE),
                theirs=theirs,
                drawn=drawn,
                ours=ours.shards,
                signatures=ours.signatures,
                settings=settings.selection,
                ingest=settings.ingest,
                rates=ours.rates or rates,
                is_own_rate=bool(ours.rates),
            )
            details = run.one(job).details
            table = [line._asdict() for line in lines(details)]
            shown = {name: details[name] for name in ("documents", *PriceSummary.__annotations__)}
            return published(PriceSummary, run, job.folder, table, "What new documents would add.", **shown)


def check(run: Run, files: Sequence[str], sample: int) -> None:
    """Check that a workspace is finished as far as the selection's inputs, and that a sample of files can be drawn.

    Raises
    ------
    FinewebMaskError
        With what to change.
    """
    find_candidate(files, run.settings, sample)
    _finished(run)


def _finished(run: Run) -> Prepared:
    with suppress(UnfinishedError, MissingInputError):
        found = prepare(run)
        if all(shard.scores.path and shard.embeddings.path for shard in found.shards):  # else they are lost
            return found
    raise SettingsError(
        f"{run.settings.workspace} has no scores, vectors and duplicates of all its files: run its recipe first"
    )


def _ours(run: Run) -> _Ours:
    """Return what the workspace has, after making the signatures of its texts if near-duplicates are found by them."""
    shards, models, documents = _finished(run)
    signatures, ingest = list[StageFile](), run.settings.ingest
    if ingest.near_dedup == "minhash":
        sketch = Sketch.for_threshold(ingest.near_threshold)
        made = run.map(sort_rows, file=documents, by="signatures", sketch=sketch)
        signatures = [made[shard.name] for shard in shards]
    scorers = [
        model.model_copy(update={"path": model.path and str(run.workspace.local(model.path))})
        for model in models.quality.scorers
    ]
    encoder = models.encoder
    if encoder is not None:
        encoder = encoder.model_copy(update={"path": str(run.workspace.local(encoder.path))})
    return _Ours(shards, signatures, Models(models.quality._replace(scorers=scorers), encoder), _rates(run))


def _rates(run: Run) -> list[Rate]:
    """Return the tokens of every shard, and how long it took to be ingested, scored and embedded."""
    seconds, tokens = defaultdict[str, list[float]](list), dict[str, int]()
    for job, file in (pair for stage in PREPARED for pair in run.found[stage] if pair[1] is not None):
        seconds[job.name].append(recorded_seconds(job, run.workspace))
        if job.stage.name == "ingest" and file is not None:
            tokens[job.name] = int(file.details["tokens"])
    return [Rate(tokens[name], sum(times)) for name, times in seconds.items() if name in tokens and min(times) > 0]


def _narrowed(settings: PipelineSettings, folder: Path) -> PipelineSettings:
    """Return a recipe of the drawn source with the same ingest, scores and vectors, and a workspace apart."""
    found = narrowed(settings, folder)
    ingest = found.ingest.model_copy(update={"groups": []})
    return found.model_copy(update={"ingest": ingest, "report": ReportSettings()})


def _sampled(run: Run, models: Models) -> list[ShardFiles]:
    """Ingest, score and embed the sample by the models of the workspace, and find the copies in it."""
    documents = ingest_shards(run)
    quality = models.quality._replace(sidecars=PerShard({name: {} for name in run.shards}))
    if run.settings.embedding.model == FROM_QUALITY:
        scores, vectors = score_and_embed_shards(run, documents, quality)
    else:
        scores, vectors = score_shards(run, documents, quality), embed_shards(run, documents, models.encoder)
    duplicates = find_duplicates(run, documents)
    return prepared(run, documents, models, scores, vectors, duplicates).shards
