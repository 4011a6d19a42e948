"""Embed the examples of target tasks, and count the n-grams of their texts and of the corpus.

What this writes is kept while the corpus grows, as models are, so that all documents are compared with the same.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import STATIC, EmbeddingSettings, SourceSettings
from fineweb_mask.models.settings.selectors.options import TargetSettings
from fineweb_mask.tasks.fit.job import FitJob, sampled_texts
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.stage_parquet import write_arrays

SAMPLE_DOCUMENTS = 20_000
"""Documents in which the n-grams of the corpus are counted (`dsir`)."""
AT_ONCE = 512
"""Examples that are embedded together."""


class FitTargetsJob(FitJob):
    """Embed target examples and count n-grams."""

    stage: ClassVar[Stage] = Stage("fit_targets", version=1, label="fit", run_with=("select",))
    name: ClassVar[str] = "targets"
    files: list[SourceShard]
    settings: TargetSettings
    embedding: EmbeddingSettings
    encoder: str  # path of the encoder of the documents
    encoder_fingerprint: str

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.embedding.model != STATIC

    def depends_on(self) -> Dependencies:
        """Return the examples, the encoder and what makes its vectors, and the size of the sample."""
        files = [[file.relative, file.fingerprint] for file in self.files]
        how = self.embedding.digested(include={"prompt", "max_tokens", "long_documents", "compute_precision"})
        settings = [self.settings.digested(exclude={"path"}), how]
        return Dependencies(settings=settings, inputs=[files, self.encoder_fingerprint])


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
    pool = encoder_pool(str(job.workspace.local(job.encoder)), job.encoder_fingerprint, job.embedding)
    vectors, usable = list[NDArray[np.float32]](), list[NDArray[np.bool_]]()
    with gpu_slot(pool.device), pool.encoder() as encoder:
        for start in track("target examples", range(0, len(texts), AT_ONCE), part=(0, 0.3)):
            encoded = encoder.encode(texts[start : start + AT_ONCE])
            vectors.append(np.asarray(encoded.vectors, dtype=np.float32))
            usable.append(~encoded.bad)
    kept = np.concatenate(usable)
    documents = job.fitting_documents()
    buckets = NgramBuckets()
    corpus = buckets.counts(sampled_texts(job.workspace, documents, SAMPLE_DOCUMENTS)())
    of_task = {name: [text for text, task in zip(texts, tasks, strict=True) if task == name] for name in names}
    by_task = np.stack([buckets.counts(own) for own in of_task.values()])
    arrays: dict[str, NDArray[Any]] = {
        "vectors": np.concatenate(vectors)[kept],
        "tasks": np.searchsorted(names, tasks)[kept],
        "log_ratios": log_ratios(by_task.sum(0), corpus),
        "task_log_ratios": np.stack([log_ratios(own, corpus) for own in by_task]),
        "task_examples": np.array([len(own) for own in of_task.values()], dtype=np.int64),
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
