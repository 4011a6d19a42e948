"""Fit models on the corpus: the quality classifier, the score statistics, the built-in encoder.

A fitted model is kept in `fitted/` and reused while the corpus grows, because all shards must share one encoder. It is
fitted again if its settings change or a refit is requested. A lost or damaged model is fitted again on the same shards
as before if these are unchanged.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.quality import combine
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.quality import FastTextScorerSettings, LabelSettings, QualitySettings
from fineweb_mask.tasks.inference.scorers import QualityModel, columns_read, load_models, score_columns
from fineweb_mask.tasks.inference.scoring_pool import pooled_models, score_texts
from fineweb_mask.tasks.source.labels import read_labels
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, tree_files
from fineweb_mask.tasks.storage.scratch import pinned
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.manifest import is_whole, manifest_reference, read_manifest, write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

SAMPLED_SHARDS = 64
"""Most shards that a sample of the corpus is read from: one shard of FineWeb holds a million documents."""


class FitJob(StageJob):
    """Fit one model on the documents and keep it when the corpus grows."""

    documents: list[StageFile]

    @property
    def manifest_path(self) -> Path:
        """The manifest of the fitted model; its file or folder has the same stem."""
        return self.workspace.fitted / f"{self.name}.json"

    def current(self) -> StageFile | None:
        """Return what was fitted if it is whole and was fitted with these settings, else None."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None or not is_whole(self.manifest_path, manifest, download=True):
            return None
        wanted, found = self.key, manifest.key
        if (found.stage, found.version, found.settings) != (wanted.stage, wanted.version, wanted.settings):
            return None
        return manifest_reference(self.workspace, self.manifest_path, self.name, manifest)

    def fitting_documents(self) -> list[StageFile]:
        """Return the documents to fit on: those of a lost earlier fit where they are unchanged, else all."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None or manifest.key.settings != self.key.settings:
            return self.documents
        earlier = manifest.fitted_on
        same = [file for file in self.documents if earlier.get(file.name) == file.fingerprint]
        return same if same and len(same) == len(earlier) else self.documents


def sampled_shards(workspace: Workspace, shards: list[str]) -> list[str]:
    """Return the shards that a fit reads: evenly spaced ones, and those that an earlier fit was made on."""
    every = max(1, -(-len(shards) // SAMPLED_SHARDS))
    manifests = [read_manifest(path) for path in workspace.files("fitted/*.json")]
    earlier = {name for manifest in manifests if manifest is not None for name in manifest.fitted_on}
    return [name for index, name in enumerate(shards) if index % every == 0 or name in earlier]


def sampled_texts(workspace: Workspace, documents: list[StageFile], limit: int) -> Callable[[], Iterator[str]]:
    """Return a function that reads about `limit` texts, evenly spaced over at most `SAMPLED_SHARDS` shards."""

    def texts() -> Iterator[str]:
        for _, batch in sampled_documents(workspace, documents, limit, lambda *_: ["text"]):
            yield from batch["text"].to_pylist()

    return texts


def sampled_documents(
    workspace: Workspace, documents: list[StageFile], limit: int, columns: Callable[[pa.Schema, str], list[str]]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield about `limit` documents in batches with their shard, evenly spaced over at most `SAMPLED_SHARDS` shards.

    `columns` returns the columns to read of a shard, from its schema and name.
    """
    every = max(1, -(-len(documents) // SAMPLED_SHARDS))
    shards = documents[::every]
    total = sum(file.rows for file in shards)
    step = max(1, -(-total // limit))
    position = 0

    def batches() -> Iterator[tuple[str, pa.RecordBatch]]:
        for shard in shards:
            with pinned():  # until it is open
                opened = pq.ParquetFile(workspace.resolve(shard))
            with opened as file:
                for batch in file.iter_batches(1_000, columns=columns(file.schema_arrow, shard.name)):
                    yield shard.name, batch

    for shard, batch in track_by_size("documents of the sample", batches(), total, lambda batch: batch[1].num_rows):
        wanted = np.arange(-position % step, batch.num_rows, step)
        position += batch.num_rows
        yield shard, batch.take(pa.array(wanted))


class FitClassifierJob(FitJob):
    """Train a fastText classifier on labels; `of` makes one."""

    stage: ClassVar[Stage] = Stage("fit_classifier", version=1, label="fit", run_with=("score",))
    scorer: FastTextScorerSettings
    labels: LabelSettings
    labels_digest: str  # of the file

    @classmethod
    def of(cls, root: str, scorer: FastTextScorerSettings) -> Self:
        """Return the job that trains the classifier of a scorer without a model of its own."""
        if scorer.labels is None:
            raise SettingsError(f"scorer {scorer.name!r} has neither a model nor labels")
        labels_digest = file_digest(Path(scorer.labels.path))
        return cls(root=root, documents=[], scorer=scorer, labels=scorer.labels, labels_digest=labels_digest)

    @property
    def name(self) -> str:
        """The name of the classifier's files."""
        return f"quality-{self.scorer.name}"

    def depends_on(self) -> Dependencies:
        """Return the labels and how the classifier is trained on them."""
        labels, training = self.labels.model_dump(exclude={"path"}), self.scorer.training.model_dump()
        return Dependencies(settings=[labels, self.labels_digest, training, self.scorer.lowercase], inputs=[])


@stage_task
def fit_classifier(job: FitClassifierJob) -> None:
    """Train the classifier on its labels."""
    from fineweb_mask.models.quality.fasttext.scorer import train_fasttext

    read = read_labels(job.labels)
    model = train_fasttext(read.texts, read.positive.tolist(), job.scorer.training, lowercase=job.scorer.lowercase)
    path = job.manifest_path.with_suffix(".bin")
    with atomic_write(path) as partial:
        model.save_model(str(partial))
    write_manifest(job.manifest_path, job.key, [path], {"rows": len(read.texts), "positive": int(read.positive.sum())})


class FitStatisticsJob(FitJob):
    """Measure the mean and deviation of every score; `processes` as in the score stage."""

    stage: ClassVar[Stage] = Stage("fit_statistics", version=1, label="fit", run_with=("score",))
    name: ClassVar[str] = "quality-statistics"
    models: list[QualityModel]
    settings: QualitySettings
    processes: int = 1

    def depends_on(self) -> Dependencies:
        """Return the models and the size of the sample."""
        identities = [model.identity for model in self.models]
        return Dependencies(settings=[self.settings.statistics_documents, identities], inputs=[])


@stage_task
def fit_statistics(job: FitStatisticsJob) -> None:
    """Score a sample of the corpus and keep the mean and deviation of every scorer."""
    documents = job.fitting_documents()
    pooled = pooled_models(job.models, job.processes)
    scorers = load_models(job.workspace, [model for model in job.models if model not in pooled])
    sample: dict[str, list[Any]] = defaultdict(list)
    places: list[tuple[str, int]] = []  # shard and row
    limit = job.settings.statistics_documents
    for shard, batch in sampled_documents(
        job.workspace,
        documents,
        limit,
        lambda schema, shard: columns_read(scorers.values(), schema, shard, with_text=bool(pooled)),
    ):
        for column, values in batch.to_pydict().items():
            sample[column] += values
        places += [(shard, row) for row in batch["row"].to_pylist()]
    scores = score_columns(scorers, sample, lambda position: "{}, row {}".format(*places[position]))
    pool_scores = score_texts(job.workspace, pooled, sample["text"], job.processes)
    scores |= zip((model.settings.name for model in pooled), pool_scores, strict=True)
    in_order = {model.settings.name: scores[model.settings.name] for model in job.models}
    details = {"rows": len(places), "statistics": combine.fit_statistics(in_order)}
    write_manifest(job.manifest_path, job.key, [], details, fitted_on=documents)


class FitEncoderJob(FitJob):
    """Fit the built-in encoder."""

    stage: ClassVar[Stage] = Stage("fit_encoder", version=2, label="fit", run_with=("embed",))
    name: ClassVar[str] = "encoder"
    settings: EmbeddingSettings

    def depends_on(self) -> Dependencies:
        """Return the size of the encoder and of its sample."""
        included = {"static_vocabulary", "static_dimensions", "static_fit_documents"}
        return Dependencies(settings=self.settings.model_dump(include=included), inputs=[])


@stage_task
def fit_encoder(job: FitEncoderJob) -> None:
    """Fit the built-in encoder on a sample of the corpus and keep it as a sentence-transformers folder."""
    from fineweb_mask.models.embedding.static_fit import fit_static_encoder

    documents = job.fitting_documents()
    encoder = fit_static_encoder(
        sampled_texts(job.workspace, documents, job.settings.static_fit_documents),
        vocabulary=job.settings.static_vocabulary,
        dimensions=job.settings.static_dimensions,
    )
    folder = job.manifest_path.with_suffix("")
    with atomic_folder(folder) as partial:
        encoder.as_sentence_transformer().save_pretrained(str(partial), create_model_card=False)
    write_manifest(job.manifest_path, job.key, tree_files(folder), {}, fitted_on=documents)
