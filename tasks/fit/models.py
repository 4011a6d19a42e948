"""Fit the quality classifier, the score statistics, the built-in encoder, and the examples of target tasks.

Of target tasks, the examples are embedded, and the n-grams of their texts and of the corpus are counted. What this
writes is kept while the corpus grows, as models are, so that all documents are compared with the same.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.quality import combine
from fineweb_mask.models.quality.column import SidecarScorer
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import STATIC, EmbeddingSettings, SourceSettings
from fineweb_mask.models.settings.quality import (
    FastTextScorerSettings,
    FastTextTrainingSettings,
    LabelSettings,
    QualitySettings,
)
from fineweb_mask.models.settings.selection import TargetSettings
from fineweb_mask.tasks.fit.job import FitJob
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.inference.scorers import (
    QualityModel,
    batch_scores,
    columns_read,
    groups_of,
    load_models,
    load_sidecars,
)
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.labels import read_labels
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.source.sidecars import Sidecar
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, tree_files
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import file_digest
from fineweb_mask.tasks.workspace.stage_parquet import write_arrays

TRAINING = FastTextTrainingSettings()
"""How classifiers are trained in a run; `train-quality` takes other settings."""
GROUP_DOCUMENTS = 200
"""Documents of the sample that a group needs for its own statistics: its mean is then known to 0.07 deviations."""
SAMPLE_DOCUMENTS = 20_000
"""Documents of the sample that encoders and statistics are fitted on, and in which n-grams are counted (`dsir`)."""
AT_ONCE = 512
"""Examples that are embedded together."""


class FitClassifierJob(FitJob):
    """Train a fastText classifier on labels; `of` makes one."""

    stage: ClassVar[Stage] = Stage("fit_classifier", version=1, label="fit")
    scorer: FastTextScorerSettings
    labels: LabelSettings
    labels_digest: str  # of the file

    @classmethod
    def of(cls, root: str, scorer: FastTextScorerSettings, *, force: bool = False) -> Self:
        """Return the job that trains the classifier of a scorer that names no model."""
        if scorer.labels is None:
            raise SettingsError(f"scorer {scorer.name!r} has neither a model nor labels: give one of them")
        labels_digest = file_digest(Path(scorer.labels.path))
        return cls(
            root=root,
            documents=[],
            duplicates=[],
            scorer=scorer,
            labels=scorer.labels,
            labels_digest=labels_digest,
            force=force,
        )

    @property
    def name(self) -> str:
        """The name of the classifier's files."""
        return f"quality-{self.scorer.name}"

    def depends_on(self) -> Dependencies:
        """Return the labels and how the classifier is trained on them."""
        labels, training = self.labels.model_dump(exclude={"path"}), TRAINING.model_dump()
        return Dependencies(settings=[labels, self.labels_digest, training, self.scorer.lowercase], inputs=[])


@stage_task
def fit_classifier(job: FitClassifierJob) -> None:
    """Train the classifier on its labels."""
    from fineweb_mask.models.quality.fasttext.scorer import train_fasttext

    read = read_labels(job.labels)
    model = train_fasttext(read.texts, read.positive.tolist(), TRAINING, lowercase=job.scorer.lowercase)
    path = job.model_path([], ".bin")
    with atomic_write(path) as partial:
        model.save_model(str(partial))
    job.publish([path], {"rows": len(read.texts), "positive": int(read.positive.sum())}, [])


class FitStatisticsJob(FitJob):
    """Measure the mean and deviation of every score; `processes` as in the score stage."""

    stage: ClassVar[Stage] = Stage("fit_statistics", version=3, label="fit")
    name: ClassVar[str] = "quality-statistics"
    models: list[QualityModel]
    settings: QualitySettings
    sidecars: dict[str, dict[str, Sidecar]] = Field(
        default_factory=dict
    )  # of the source files, by shard and by the scorer's name
    processes: int = 1
    group_documents: int = GROUP_DOCUMENTS

    def depends_on(self) -> Dependencies:
        """Return the models, the size of the sample, and by what column of it statistics are fitted."""
        identities = [model.identity for model in self.models]
        by = [] if self.settings.by is None else [self.settings.by, self.group_documents]
        return Dependencies(settings=[SAMPLE_DOCUMENTS, identities, *by], inputs=[])


@stage_task
def fit_statistics(job: FitStatisticsJob) -> None:
    """Score a sample of the corpus and keep the mean and deviation of every scorer, also by group if one is named.

    A shard whose sidecar cannot be read has no part in the sample.

    Raises
    ------
    BadShardError
        If no shard of the sample has the sidecars that the scorers read.
    """
    documents = job.fitting_documents()
    scorers = load_models(job.workspace, job.models, job.processes)
    by, unreadable = job.settings.by, list[BadShardError]()
    groups = list[str]()
    found: dict[str, list[NDArray[np.float32]]] = {model.settings.name: [] for model in job.models}  # shard by shard

    def columns(schema: pa.Schema, shard: str) -> list[str]:
        names = columns_read(scorers.values(), schema, shard, by=by)
        return list(dict.fromkeys([*names, *(SidecarScorer.columns if job.sidecars else ())]))

    sampled = job.sampled_documents(documents, SAMPLE_DOCUMENTS, columns)
    by_name = {file.name: file for file in documents}
    for shard, of_shard in groupby(sampled, key=lambda pair: pair[0]):
        try:
            annotated, _ = load_sidecars(job.workspace, by_name[shard], job.models, job.sidecars.get(shard, {}))
        except BadShardError as error:  # the shard is quarantined when it is scored
            unreadable.append(error)
            continue
        sample = pa.Table.from_batches([batch for _, batch in of_shard])
        groups += [""] * sample.num_rows if by is None else groups_of(sample, by)
        for name, own in batch_scores(scorers | annotated, sample, shard).items():
            found[name].append(own)
    if unreadable and not groups:
        first_error = unreadable[0]
        raise BadShardError(f"no shard of the sample has the scores of a sidecar: {first_error}")
    scores = {name: np.concatenate([np.empty(0, np.float32), *of_shards]) for name, of_shards in found.items()}
    details: dict[str, Any] = {"rows": len(groups), "statistics": combine.fit_statistics(scores)}
    if by is not None:
        details["by_group"] = combine.fit_group_statistics(scores, groups, job.group_documents)
    job.publish([], details, documents)


class FitEncoderJob(FitJob):
    """Fit the built-in encoder."""

    stage: ClassVar[Stage] = Stage("fit_encoder", version=4, label="fit")
    name: ClassVar[str] = "encoder"
    settings: EmbeddingSettings

    def depends_on(self) -> Dependencies:
        """Return the size of the encoder and of its sample."""
        return Dependencies(settings=[self.settings.static_dimensions, SAMPLE_DOCUMENTS], inputs=[])


@stage_task
def fit_encoder(job: FitEncoderJob) -> None:
    """Fit the built-in encoder on a sample of the corpus and keep it as a sentence-transformers folder."""
    from fineweb_mask.models.embedding.static_fit import fit_static_encoder

    documents = job.fitting_documents()
    encoder = fit_static_encoder(
        lambda: job.sampled_texts(documents, SAMPLE_DOCUMENTS),
        dimensions=job.settings.static_dimensions,
    )
    folder = job.model_path(documents)
    with atomic_folder(folder) as partial:
        encoder.save(partial)
    job.publish(tree_files(folder), {}, documents)


class FitTargetsJob(FitJob):
    """Embed target examples and count n-grams."""

    stage: ClassVar[Stage] = Stage("fit_targets", version=3, label="fit")
    name: ClassVar[str] = "targets"
    files: list[SourceShard]
    settings: TargetSettings
    embedding: EmbeddingSettings
    encoder: ModelFolder  # of the documents

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.embedding.model != STATIC

    def depends_on(self) -> Dependencies:
        """Return the examples, the encoder and what makes its vectors, and the size of the sample."""
        files = [[file.relative, file.fingerprint] for file in self.files]
        how = self.embedding.model_dump(include={"prompt", "max_tokens"})
        settings = [self.settings.model_dump(exclude={"path"}), how]
        return Dependencies(settings=settings, inputs=[files, self.encoder.fingerprint])


@stage_task
def fit_targets(job: FitTargetsJob) -> None:
    """Write the vectors and tasks of the examples, and the log ratios of the buckets of n-grams.

    Raises
    ------
    BadShardError
        If a file of examples cannot be read, holds none, or lacks a column that the settings name.
    """
    from fineweb_mask.models.quality.importance import NgramBuckets, log_ratios
    from fineweb_mask.tasks.inference.encoder_pool import encoder_pool

    texts, tasks = zip(*_examples(job), strict=True)
    names = sorted(set(tasks))
    pool = encoder_pool(job.workspace, job.encoder, job.embedding)
    vectors, usable = list[NDArray[np.float32]](), list[NDArray[np.bool_]]()
    with gpu_slot(pool.first.device), pool.encoder() as encoder:
        for start in track("target examples", range(0, len(texts), AT_ONCE), part=(0, 0.3)):
            encoded = encoder.encode(texts[start : start + AT_ONCE])
            vectors.append(np.asarray(encoded.vectors, dtype=np.float32))
            usable.append(~encoded.bad)
    kept = np.concatenate(usable)
    documents = job.fitting_documents()
    buckets = NgramBuckets()
    corpus = buckets.counts(job.sampled_texts(documents, SAMPLE_DOCUMENTS))
    arrays: dict[str, NDArray[Any]] = {
        "vectors": np.concatenate(vectors)[kept],
        "tasks": np.searchsorted(names, tasks)[kept],
        "log_ratios": log_ratios(buckets.counts(texts), corpus),
    }
    if not kept.any():
        raise BadShardError("selection.targets: no example has a vector: check its text_column")
    path = job.model_path(documents, ".parquet")
    details = {"rows": int(kept.sum()), "tasks": names, "left_out": int((~kept).sum())}
    write_arrays(path, job.key, arrays, details)
    job.publish([path], details, documents)


def _examples(job: FitTargetsJob) -> Iterator[tuple[str, str]]:
    """Yield the text and the task of every example that is not empty."""
    column, found = job.settings.task_column, 0
    settings = SourceSettings(
        path=job.settings.path,
        text_column=job.settings.text_column,
        extra_columns=[] if column is None or column in FINEWEB.names else [column],
    )
    for file in job.files:
        try:
            for batch, _ in ShardReader(file, settings).batches():
                tasks = ["" if column is None else str(name) for name in batch[column or "text"].to_pylist()]
                for text, task in zip(batch["text"].to_pylist(), tasks, strict=True):
                    if text and text.strip():
                        found += 1
                        yield text, task if column is not None else ""
        except BadShardError as error:
            message = str(error).replace("source.text_column", "selection.targets.text_column")
            reason = message.replace("source.extra_columns", "selection.targets.task_column")
            raise BadShardError(f"selection.targets.path: {reason}") from error
    if not found:
        raise BadShardError(
            f"selection.targets.path: {job.settings.path!r} holds no example with a text: check its text_column"
        )
