"""Fit the quality classifier, the score statistics and the built-in encoder."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.quality import combine
from fineweb_mask.models.quality.column import SidecarScorer
from fineweb_mask.models.quality.registry import Scorer, columns_of
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.quality import (
    FastTextScorerSettings,
    FastTextTrainingSettings,
    LabelSettings,
    QualitySettings,
)
from fineweb_mask.tasks.fit.job import FitJob, sampled_documents, sampled_texts
from fineweb_mask.tasks.inference.scorers import (
    QualityModel,
    batch_scores,
    columns_read,
    groups_of,
    load_models,
    load_sidecars,
    score_columns,
)
from fineweb_mask.tasks.inference.scoring_pool import pooled_models, score_batches
from fineweb_mask.tasks.source.labels import read_labels
from fineweb_mask.tasks.source.sidecars import Sidecar
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, tree_files
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, file_digest

GROUP_DOCUMENTS = 200
"""Documents of the sample that a group needs for its own statistics: its mean is then known to 0.07 deviations."""


class FitClassifierJob(FitJob):
    """Train a fastText classifier on labels; `of` makes one."""

    stage: ClassVar[Stage] = Stage("fit_classifier", version=1, label="fit", run_with=("score",))
    scorer: FastTextScorerSettings
    labels: LabelSettings
    labels_digest: str  # of the file
    training: FastTextTrainingSettings = FastTextTrainingSettings()

    @classmethod
    def of(cls, root: str, scorer: FastTextScorerSettings, *, force: bool = False) -> Self:
        """Return the job that trains the classifier of a scorer that names no model."""
        if scorer.labels is None:
            raise SettingsError(f"scorer {scorer.name!r} has neither a model nor labels: give one of them")
        labels_digest = file_digest(Path(scorer.labels.path))
        return cls(
            root=root, documents=[], scorer=scorer, labels=scorer.labels, labels_digest=labels_digest, force=force
        )

    @property
    def name(self) -> str:
        """The name of the classifier's files."""
        return f"quality-{self.scorer.name}"

    def depends_on(self) -> Dependencies:
        """Return the labels and how the classifier is trained on them."""
        labels, training = self.labels.digested(exclude={"path"}), self.training.digested()
        return Dependencies(settings=[labels, self.labels_digest, training, self.scorer.lowercase], inputs=[])


@stage_task
def fit_classifier(job: FitClassifierJob) -> None:
    """Train the classifier on its labels."""
    from fineweb_mask.models.quality.fasttext.scorer import train_fasttext

    read = read_labels(job.labels)
    model = train_fasttext(read.texts, read.positive.tolist(), job.training, lowercase=job.scorer.lowercase)
    path = job.model_path([], ".bin")
    with atomic_write(path) as partial:
        model.save_model(str(partial))
    job.publish([path], {"rows": len(read.texts), "positive": int(read.positive.sum())}, [])


class FitStatisticsJob(FitJob):
    """Measure the mean and deviation of every score; `processes` as in the score stage."""

    stage: ClassVar[Stage] = Stage("fit_statistics", version=1, label="fit", run_with=("score",))
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
        return Dependencies(settings=[self.settings.statistics_documents, identities, *by], inputs=[])


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
    pooled = pooled_models(job.models, job.processes)
    scorers = load_models(job.workspace, [model for model in job.models if model not in pooled])
    sample: dict[str, list[Any]] = defaultdict(list)
    groups: list[str] = []
    places: list[tuple[str, int]] = []  # shard and row
    limit, annotated = job.settings.statistics_documents, _Annotated(job, documents)
    by = job.settings.by

    def columns(schema: pa.Schema, shard: str) -> list[str]:
        read = columns_read(scorers.values(), schema, shard, with_text=bool(pooled), by=by)
        return list(dict.fromkeys([*read, *annotated.columns]))

    def batches() -> Iterator[pa.RecordBatch]:
        for shard, batch in sampled_documents(job.workspace, documents, limit, columns):
            if annotated.add(shard, batch):
                places.extend((shard, row) for row in batch["row"].to_pylist())
                yield batch

    pool_scores: dict[str, list[NDArray[np.float32]]] = defaultdict(list)
    for batch, found in score_batches(job.workspace, pooled, job.processes, batches()):
        for column in {one for scorer in scorers.values() for one in columns_of(scorer)}:
            sample[column] += batch[column].to_pylist()
        groups += [] if by is None else groups_of(batch, by)
        for name, part in found.items():
            pool_scores[name].append(part)
    scores = score_columns(scorers, sample, lambda position: "{}, row {}".format(*places[position]))
    scores |= {name: np.concatenate(parts) for name, parts in pool_scores.items()}
    scores |= annotated.scores()
    in_order = {model.settings.name: scores[model.settings.name] for model in job.models}
    details: dict[str, Any] = {"rows": len(places), "statistics": combine.fit_statistics(in_order)}
    if by is not None:
        details["by_group"] = combine.fit_group_statistics(in_order, groups, job.group_documents)
    job.publish([], details, documents)


class _Annotated:
    """The scores of a sample that are read from sidecars, shard by shard."""

    def __init__(self, job: FitStatisticsJob, documents: list[StageFile]) -> None:
        self._job = job
        self._documents = {file.name: file for file in documents}
        self._shard = ""
        self._scorers: dict[str, Scorer] | None = {}  # of that shard; None if a sidecar cannot be read
        self._found: dict[str, list[NDArray[np.float32]]] = defaultdict(list)
        self._left_out: dict[str, str] = {}  # why, by shard

    @property
    def columns(self) -> list[str]:
        """The columns of the documents that are read."""
        return [SidecarScorer.column] if self._job.sidecars else []

    def add(self, shard: str, batch: pa.RecordBatch) -> bool:
        """Score a batch; return whether its documents are in the sample."""
        if not self._job.sidecars:
            return True
        if shard != self._shard:
            self._shard, self._scorers = shard, self._load(shard)
        if self._scorers is None:
            return False
        for name, scores in batch_scores(self._scorers, batch, shard).items():
            self._found[name].append(scores)
        return True

    def scores(self) -> dict[str, NDArray[np.float32]]:
        """Return the scores of all batches that were added, by the scorer's name."""
        if self._left_out and not self._found:
            reason = next(iter(self._left_out.values()))
            raise BadShardError(f"no shard of the sample has the scores of a sidecar: {reason}")
        return {name: np.concatenate(scores) for name, scores in self._found.items()}

    def _load(self, shard: str) -> dict[str, Scorer] | None:
        try:
            return load_sidecars(self._documents[shard], self._job.models, self._job.sidecars[shard])
        except BadShardError as error:  # the shard is quarantined when it is scored
            self._left_out[shard] = str(error)
            return None


class FitEncoderJob(FitJob):
    """Fit the built-in encoder."""

    stage: ClassVar[Stage] = Stage("fit_encoder", version=2, label="fit", run_with=("embed",))
    name: ClassVar[str] = "encoder"
    settings: EmbeddingSettings

    def depends_on(self) -> Dependencies:
        """Return the size of the encoder and of its sample."""
        included = {"static_vocabulary", "static_dimensions", "static_fit_documents"}
        return Dependencies(settings=self.settings.digested(include=included), inputs=[])


@stage_task
def fit_encoder(job: FitEncoderJob) -> None:
    """Fit the built-in encoder on a sample of the corpus and keep it as a sentence-transformers folder."""
    from fineweb_mask.models.embedding.static_fit import fit_static_encoder

    documents = job.fitting_documents()
    encoder = fit_static_encoder(
        sampled_texts(job.workspace, documents, job.settings.static_fit_documents),
        dimensions=job.settings.static_dimensions,
    )
    folder = job.model_path(documents)
    with atomic_folder(folder) as partial:
        encoder.as_sentence_transformer().save_pretrained(str(partial), create_model_card=False)
    job.publish(tree_files(folder), {}, documents)
