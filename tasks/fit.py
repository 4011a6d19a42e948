"""Fit the quality classifier, the score statistics, the built-in encoder, and the examples of target tasks.

What is fitted is kept in `fitted/` and reused while the corpus grows, because all shards must share it. It is fitted
again if a refit is requested, or no shard that it was fitted on is in the corpus as it was; other settings have their
own model.

The files of a model are never replaced, because jobs may be reading them: their names tell the settings and what the
model was fitted on. Only the manifest is, whose name tells the settings.
"""

from collections.abc import Callable, Container, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.quality import combine
from fineweb_mask.models.quality.fasttext import OPTIONS, train_fasttext
from fineweb_mask.models.runtime.progress import track, track_by_size
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import STATIC, EmbeddingSettings, SourceSettings
from fineweb_mask.models.settings.quality import FastTextScorerSettings, LabelSettings, QualitySettings
from fineweb_mask.models.settings.selection import TargetSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.model_files import ModelFolder, loaded_encoder
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
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import Manifest, read_manifest
from fineweb_mask.tasks.workspace.references import StageFile, digest, file_digest
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, write_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

SAMPLED_SHARDS = 64
"""Most shards that a sample of the corpus is read from: one shard of FineWeb holds a million documents."""
SAMPLE_DOCUMENTS = 20_000
"""Documents of the sample that encoders and statistics are fitted on, and in which n-grams are counted (`dsir`)."""
GROUP_DOCUMENTS = 200
"""Documents of the sample that a group needs for its own statistics: its mean is then known to 0.07 deviations."""
AT_ONCE = 512
"""Examples that are embedded together."""


class FitJob(ProductJob):
    """Fit one model on the documents and keep it when the corpus grows; `force` fits it again."""

    documents: list[StageFile]
    duplicates: list[StageFile]  # of the same shards: rows that have no part in the sample

    def model_path(self, suffix: str = "") -> Path:
        """Return the file, which has a suffix, or the folder of the model that is fitted on the documents."""
        fitted_on = {file.name: file.fingerprint for file in self.documents}
        return self.workspace.fitted / f"{self.name}.{digest([self.key.fingerprint, fitted_on])[:16]}{suffix}"

    def whole_manifest(self) -> Manifest | None:
        """Return the manifest if the model is whole, and was fitted with these settings on this corpus, else None."""
        manifest = super().whole_manifest()
        if manifest is None or not manifest.fitted_on or not self.documents:
            return manifest
        is_there = any(manifest.fitted_on.get(file.name) == file.fingerprint for file in self.documents)
        return manifest if is_there else None

    def sampled_texts(self, limit: int) -> Iterator[str]:
        """Yield about `limit` texts; see `sampled_documents`."""
        for _, batch in self.sampled_documents(limit, lambda *_: ["text"]):
            yield from batch["text"].to_pylist()

    def sampled_documents(
        self, limit: int, columns: Callable[[pa.Schema, str], list[str]]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield about `limit` of the documents that are no duplicates in batches, with their shard.

        They are evenly spaced over at most `SAMPLED_SHARDS` shards. `columns` returns the columns to read of a shard,
        from its schema and name.
        """
        every = max(1, -(-len(self.documents) // SAMPLED_SHARDS))
        duplicates = {file.name: file for file in self.duplicates}
        kept = [
            (shard, np.setdiff1d(np.arange(shard.rows), duplicate_rows(self.workspace, duplicates[shard.name])))
            for shard in self.documents[::every]
            if shard.rows  # a file without rows may have no columns
        ]
        total = sum(len(rows) for _, rows in kept)
        step = max(1, -(-total // limit))

        def batches() -> Iterator[tuple[str, pa.RecordBatch]]:
            first = 0
            for shard, rows in kept:
                wanted = rows[-first % step :: step]
                first += len(rows)
                with VerifiedFile(self.workspace.resolve(shard)) as file:
                    names = columns(file.schema_arrow, shard.name)
                    for batch in file.iter_batches(1_000, columns=list({"row": None} | dict.fromkeys(names))):
                        is_wanted = np.isin(batch["row"].to_numpy(), wanted)
                        yield shard.name, batch.filter(pa.array(is_wanted)).select(names)

        sampled = -(-total // step)
        yield from track_by_size("documents of the sample", batches(), sampled, lambda batch: batch[1].num_rows)


def _fitted(workspace: Workspace) -> list[Manifest]:
    found = (read_manifest(path) for path in workspace.files("fitted/*.json"))
    return [manifest for manifest in found if manifest is not None]


def fitted_on_other_files(workspace: Workspace, shards: Container[str]) -> str:
    """Return what to say of a workspace whose models were fitted on other files than any of these; else nothing."""
    earlier = list(dict.fromkeys(name for manifest in _fitted(workspace) for name in manifest.fitted_on))
    if not earlier or any(name in shards for name in earlier):
        return ""
    some = ", ".join(earlier[:3]) + (", ..." if len(earlier) > 3 else "")
    return (
        f"another corpus than before: what was fitted on {some} is fitted again on this one, and the dataset is "
        "replaced; to keep both, give each a workspace of its own"
    )


def sampled_shards(workspace: Workspace, shards: list[str], *, refit: Container[str] = ()) -> list[str]:
    """Return the shards that a fit reads: evenly spaced ones, and those that an earlier fit was made on.

    Parameters
    ----------
    workspace
        The workspace of the corpus.
    shards
        The names of all shards.
    refit
        Stages whose earlier fits do not count, because they are made again.
    """
    every = max(1, -(-len(shards) // SAMPLED_SHARDS))
    manifests = [manifest for manifest in _fitted(workspace) if manifest.key.stage not in refit]
    earlier = {name for manifest in manifests for name in manifest.fitted_on}
    return [name for index, name in enumerate(shards) if index % every == 0 or name in earlier]


class FitClassifierJob(FitJob):
    """Train a fastText classifier on labels; `of` makes one."""

    stage: ClassVar[Stage] = Stage("fit_classifier", version=2, label="fit")
    scorer: FastTextScorerSettings
    labels: LabelSettings
    labels_digest: str  # of the file

    @classmethod
    def of(cls, root: str, scorer: FastTextScorerSettings, *, force: bool = False) -> Self:
        """Return the job that trains the classifier of a scorer that names no model."""
        if scorer.labels is None:
            raise SettingsError(f"scorer {scorer.name!r} has neither a model nor labels: give one of them")
        labels_digest, none = file_digest(Path(scorer.labels.path)), dict[str, Any](documents=[], duplicates=[])
        return cls(root=root, scorer=scorer, labels=scorer.labels, labels_digest=labels_digest, force=force, **none)

    @property
    def name(self) -> str:
        """The name of the classifier's files."""
        return f"quality-{self.scorer.name}"

    def depends_on(self) -> Dependencies:
        """Return the labels and how the classifier is trained on them."""
        labels = [self.labels.score_column, self.labels.threshold]
        return Dependencies(settings=[*labels, self.labels_digest, OPTIONS, self.scorer.lowercase], inputs=[])


@stage_task
def fit_classifier(job: FitClassifierJob) -> None:
    """Train the classifier on its labels."""
    texts, positive = read_labels(job.labels)
    model = train_fasttext(texts, positive.tolist(), lowercase=job.scorer.lowercase)
    path = job.model_path(".bin")
    with atomic_write(path) as partial:
        model.save_model(str(partial))
    job.publish([path], {"rows": len(texts), "positive": int(positive.sum())})


class FitStatisticsJob(FitJob):
    """Measure the mean and deviation of every score; `processes` as in the score stage."""

    stage: ClassVar[Stage] = Stage("fit_statistics", version=3, label="fit")
    name: ClassVar[str] = "quality-statistics"
    models: list[QualityModel]
    settings: QualitySettings
    sidecars: dict[str, dict[str, Sidecar]] = Field(default_factory=dict)  # of source files, by shard and scorer's name
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
    scorers = load_models(job.workspace, job.models, job.processes)
    by, unreadable = job.settings.by, list[BadShardError]()
    groups = list[str]()
    found: dict[str, list[NDArray[np.float32]]] = {model.settings.name: [] for model in job.models}  # shard by shard

    def columns(schema: pa.Schema, shard: str) -> list[str]:
        names = columns_read(scorers.values(), schema, shard, by=by)
        return list(dict.fromkeys([*names, *(["source_row"] if job.sidecars else ())]))

    by_name = {file.name: file for file in job.documents}
    for shard, of_shard in groupby(job.sampled_documents(SAMPLE_DOCUMENTS, columns), key=lambda pair: pair[0]):
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
    job.publish([], details, job.documents)


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

    dimensions, folder = job.settings.static_dimensions, job.model_path()
    encoder = fit_static_encoder(lambda: job.sampled_texts(SAMPLE_DOCUMENTS), dimensions=dimensions)
    with atomic_folder(folder) as partial:
        encoder.save(partial)
    job.publish(tree_files(folder), {}, job.documents)


class FitTargetsJob(FitJob):
    """Embed target examples and count n-grams."""

    stage: ClassVar[Stage] = Stage("fit_targets", version=4, label="fit")
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
        settings = [self.settings.task_column, self.embedding.prompt, self.embedding.max_tokens]
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

    texts, tasks = zip(*_examples(job), strict=True)
    names = sorted(set(tasks))
    encoder = loaded_encoder(job.workspace, job.encoder, job.embedding)
    vectors, usable = list[NDArray[np.float32]](), list[NDArray[np.bool_]]()
    with gpu_slot(encoder.device):
        for start in track("target examples", range(0, len(texts), AT_ONCE), part=(0, 0.3)):
            encoded = encoder.encode(texts[start : start + AT_ONCE])
            vectors.append(encoded.vectors)
            usable.append(~encoded.bad)
    kept, buckets = np.concatenate(usable), NgramBuckets()
    corpus = buckets.counts(job.sampled_texts(SAMPLE_DOCUMENTS))
    arrays: dict[str, NDArray[Any]] = {
        "vectors": np.concatenate(vectors)[kept],
        "tasks": np.searchsorted(names, tasks)[kept],
        "log_ratios": log_ratios(buckets.counts(texts), corpus),
    }
    if not kept.any():
        raise BadShardError("selection.targets: no example has a vector: check its column `text`")
    path = job.model_path(".parquet")
    details = {"rows": int(kept.sum()), "tasks": names, "left_out": int((~kept).sum())}
    write_arrays(path, job.key, arrays, details)
    job.publish([path], details, job.documents)


def _examples(job: FitTargetsJob) -> Iterator[tuple[str, str]]:
    """Yield the text and the task of every example that is not empty."""
    column, found = job.settings.task_column, 0
    settings = SourceSettings(
        path=job.settings.path,
        extra_columns=[] if column is None or column in FINEWEB.names else [column],
    )
    for file in job.files:
        try:
            for batch, _ in ShardReader(file, settings).batches():
                tasks = ["" if column is None else str(name) for name in batch[column or "text"].to_pylist()]
                for text, task in zip(batch["text"].to_pylist(), tasks, strict=True):
                    if text and text.strip():
                        found += 1
                        yield text, task
        except BadShardError as error:
            message = str(error).replace("set source.text_column to", "rename")
            reason = message.replace("source.extra_columns", "selection.targets.task_column")
            raise BadShardError(f"selection.targets.path: {reason}") from error
    if not found:
        raise BadShardError(
            f"selection.targets.path: {job.settings.path!r} holds no example with a text: check its column `text`"
        )
