"""Write a selection's threshold policy to one small file, and answer by it for documents outside of the workspace.

Documents are read, scored and embedded batch by batch, and their vectors are not kept.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineweb_mask.models.documents import token_counts
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.quality import combine
from fineweb_mask.models.runtime.progress import track, track_by_size
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.settings import PipelineSelectionSettings, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.quality import SidecarScorerSettings
from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.tasks.inference.encoder_pool import encoder_pool
from fineweb_mask.tasks.inference.gpu import torch_device
from fineweb_mask.tasks.inference.scorers import QualityModel, batch_scores, groups_of, load_models
from fineweb_mask.tasks.selection.corpus.learning import read_learned
from fineweb_mask.tasks.selection.inputs.shard_documents import random_keys, read_columns, read_parts
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, digest
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection.corpus.rule import Rule

ANSWERS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("quality", pa.float32()),
        pa.field("inclusion", pa.float32()),
        pa.field("selected", pa.bool_(), nullable=False),
    ]
)
"""What is written of every document; without a text or a vector, quality and inclusion are null."""

OF_VECTORS = {"prompt", "max_tokens", "long_documents", "compute_precision"}
"""Settings of the embedding that vectors depend on, except the encoder."""

NOTED = {"metrics", "lamb", "select_ratio", "budget", "budget_by"}
"""Settings of the selection that a policy's file names."""


class Models(NamedTuple):
    """What makes a document's quality and vector, as a workspace fitted it."""

    workspace: Workspace
    settings: PipelineSettings
    scorers: Sequence[QualityModel]
    statistics: StageFile
    encoder: str  # path
    encoder_fingerprint: str

    @property
    def fingerprint(self) -> str:
        """A digest of all of it: a policy answers for documents that the same models saw."""
        quality, embedding = self.settings.quality, self.settings.embedding
        weights = {scorer.name: [scorer.weight, scorer.name not in quality.raw] for scorer in quality.scorers}
        models = [model.identity for model in self.scorers]
        how = [weights, quality.combine, quality.by, embedding.digested(include=OF_VECTORS)]
        return digest([models, self.statistics.details, how, self.encoder_fingerprint])


class Answered(NamedTuple):
    """How many documents were answered for."""

    documents: int
    selected: int
    left_out: int  # without a text or a vector


def export_rule(path: Path, models: Models, shards: list[ShardFiles], kept: StageFile | None) -> dict[str, Any]:
    """Write the policy that a workspace's selection is, or is nearest to; return what is noted with it.

    Parameters
    ----------
    path
        The file to write.
    models
        The models of the workspace.
    shards
        The shards that are selected from.
    kept
        The policy that the workspace selects by, with `scope: global`; None: it is learned here, from all vectors.

    Raises
    ------
    SettingsError
        If the settings have no policy.
    """
    import torch

    from fineweb_mask.models.selection.corpus.rule import save_rule

    settings = models.settings.selection
    check_has_rule(models.settings)
    if kept is not None:
        policy = read_learned(models.workspace, kept, "best", torch.device("cpu")).rule
        reached = {name: kept.details[name] for name in ("objective", "upper_bound", "random_objective")}
    else:
        policy, reached = _learned(models.workspace, shards, settings)
    notes = {
        "models": models.fingerprint,
        "selection": settings.model_dump(mode="json", include=NOTED),
        "seed": settings.seed,
        **reached,
    }
    with atomic_write(path) as partial:
        save_rule(partial, policy, notes)
    return notes


def check_has_rule(recipe: PipelineSettings) -> None:
    """Check that documents elsewhere can be taken one by one, by a policy.

    Raises
    ------
    SettingsError
        If the solver or a metric reads documents together, budgets are of blocks or groups, or a score is of a file
        that documents elsewhere do not have.
    """
    settings = recipe.selection
    if settings.solver != "mean_field":
        raise SettingsError(
            f"selection.solver: a rule is that of mean_field, received {settings.solver}: use mean_field"
        )
    for name in settings.metric_weights:
        if METRICS[name].moment is None:
            raise SettingsError(
                f"selection.metrics: {name} reads documents with their neighbours, which a rule cannot: use "
                "pairwise or disf"
            )
    of_documents_here = {
        "groups": (settings.groups is not None, "knows no groups: leave them out"),
        "near_duplicates.forbid": (settings.near_duplicates.forbid, "compares no two documents: set it to false"),
        "budget": (
            settings.budget is not None and settings.scope == "block",
            "takes a share: use select_ratio",
        ),
    }
    for name, (is_set, remedy) in of_documents_here.items():
        if is_set:
            raise SettingsError(f"selection.{name}: a rule for documents elsewhere {remedy}")
    for index, scorer in enumerate(recipe.quality.scorers):
        if isinstance(scorer, SidecarScorerSettings):
            raise SettingsError(
                f"quality.scorers.{index}: the score {scorer.name!r} is of a file beside each source file, which "
                "documents elsewhere do not have: leave it out, or take a scorer that reads texts or columns"
            )


def _learned(
    workspace: Workspace, shards: list[ShardFiles], settings: PipelineSelectionSettings
) -> "tuple[Rule, dict[str, Any]]":
    """Learn the policy of all shards, from a sample where they are many."""
    from fineweb_mask.models.selection.corpus.whole import select_corpus

    columns = [read_columns(workspace, shard) for shard in shards]
    documents = sum(int(one.candidate.sum()) for one in columns)
    dimensions = max(int(shard.embeddings.details["dimensions"]) for shard in shards)
    rate = min(1.0, settings.sample_for(documents, dimensions) / max(1, documents))

    def parts() -> Iterator[Documents]:
        for shard, own in track("shards", list(zip(shards, columns, strict=True))):
            for _, part in read_parts(workspace, shard, own, settings):
                yield part

    device = torch_device(settings.device)
    found = select_corpus(parts, settings, rate=rate, passes=settings.passes, device=device)
    reached = {"objective": found.objective, "upper_bound": found.upper_bound}
    return found.rule, reached | {"random_objective": found.random_objective}


def apply_rule(rule_file: Path, files: list[SourceShard], output: Path, models: Models) -> Answered:
    """Write, for every document of files, whether a policy selects it.

    Raises
    ------
    SettingsError
        If the policy was made with other models.
    BadShardError
        If a file cannot be read.
    """
    import torch

    from fineweb_mask.models.selection.corpus.rule import load_rule

    saved = load_rule(rule_file, torch.device("cpu"))
    if saved.notes["models"] != models.fingerprint:
        raise SettingsError(
            f"{rule_file}: the rule was made with other scorers, statistics or encoder than the workspace's: "
            "use the workspace that it was exported from, or export it again"
        )
    answer = _answerer(saved.rule, saved.notes["seed"], models)
    counts = [0, 0, 0]
    with atomic_write(output) as partial, pq.ParquetWriter(partial, ANSWERS, compression="zstd") as writer:
        for file in track("files", files, part=(0, 1)):
            row = 0
            reader = ShardReader(file, _source(models.settings))
            batches = (batch for batch, _ in reader.batches())
            for batch in track_by_size("documents", batches, reader.rows, lambda batch: batch.num_rows):
                answers = answer(file, row, batch)
                writer.write_batch(answers)
                row += batch.num_rows
                selected, unknown = pc.sum(answers["selected"]).as_py() or 0, answers["inclusion"].null_count
                counts = [counts[0] + batch.num_rows, counts[1] + selected, counts[2] + unknown]
    return Answered(*counts)


def _source(settings: PipelineSettings) -> SourceSettings:
    """Return how files are read: as the recipe's source, with the columns that its scorers read."""
    wanted = {column for scorer in settings.quality.scorers for column in scorer.source_columns.values()}
    wanted |= set() if settings.quality.by is None else {settings.quality.by}
    others = sorted(wanted.difference(FINEWEB.names))
    return settings.source.model_copy(update={"extra_columns": others, "fingerprint": "mtime"})


def _answerer(
    policy: "Rule", seed: int, models: Models
) -> Callable[[SourceShard, int, pa.RecordBatch], pa.RecordBatch]:
    """Return a function that answers for a batch of documents, the first of which is a row of a file."""
    import torch

    workspace, quality = models.workspace, models.settings.quality
    scorers = load_models(workspace, list(models.scorers))
    path = str(workspace.local(models.encoder))
    pool = encoder_pool(path, models.encoder_fingerprint, models.settings.embedding)
    statistics = combine.with_raw(models.statistics.details, set(quality.raw))
    weights = {scorer.name: scorer.weight for scorer in quality.scorers}

    def answer(file: SourceShard, first: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = np.arange(first, first + batch.num_rows, dtype=np.uint32)
        has_text = pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(batch["text"])), 0), False)
        known = has_text.to_numpy(zero_copy_only=False).nonzero()[0]
        read = batch.take(pa.array(known)).append_column("row", pa.array(rows[known]))
        columns = [np.full(batch.num_rows, np.nan, dtype=np.float32) for _ in range(2)]
        chosen = np.zeros(batch.num_rows, dtype=bool)
        if len(known):
            scores = combine.combine_scores(
                batch_scores(scorers, read, file.relative),
                weights,
                statistics["statistics"],
                quality.combine,
                None if quality.by is None else groups_of(read, quality.by),
                statistics.get("by_group"),
                read.num_rows,
            )
            with pool.encoder() as encoder:
                encoded = encoder.encode(read["text"].to_pylist())
            usable = ~encoded.bad
            known, scores = known[usable], scores[usable]
            tokens = token_counts(read["token_count"], pc.utf8_length(read["text"]))[usable]
        if len(known):
            drawn = random_keys(seed, file.relative, first + batch.num_rows)[first:][known]
            documents = Documents(encoded.vectors[usable], scores, drawn, tokens)
            selected, inclusion = policy.select(documents, torch.device("cpu"))
            columns[0][known], columns[1][known], chosen[known] = scores, inclusion, selected
        numbers = [pa.array(column, mask=np.isnan(column)) for column in columns]
        names = pa.array([file.relative] * batch.num_rows, pa.string())
        return pa.record_batch([names, rows, batch["id"], *numbers, chosen], schema=ANSWERS)

    return answer
