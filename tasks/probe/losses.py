"""Collect the losses of the probe's models on every held-out document, and write them for what learns from losses."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.probe.losses import predictive_strength
from fineweb_mask.models.probe.settings import GROUPS, POOL
from fineweb_mask.tasks.probe.held_out import HeldOut
from fineweb_mask.tasks.probe.training import read_answers, read_bits
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

LOSSES = "losses.parquet"
"""File beside the page: set, group, text, bytes and `predictive_strength` of each document, and bits per byte."""


class VariantFiles(NamedTuple):
    """What was made of one arm."""

    tokens: StageFile
    groups: list[StageFile]  # its selections; none for a dataset
    models: list[StageFile]  # one for each seed
    answers: list[StageFile]  # to downstream tasks, one for each seed; none without tasks


class Losses(NamedTuple):
    """Losses on the held-out documents and, after them, on the gold answers to downstream tasks."""

    bits: dict[str, NDArray[np.float64]]  # by arm, (seeds, documents)
    sizes: NDArray[np.int64]  # (documents,), bytes
    sets: NDArray[np.object_]  # (documents,), as are the next three
    groups: NDArray[np.object_]
    clusters: NDArray[np.intp]
    texts: NDArray[np.object_]  # None for an answer

    @classmethod
    def read(cls, workspace: Workspace, held_out: StageFile, arms: Mapping[str, VariantFiles]) -> Self:
        """Read what the trainings of all arms measured."""
        documents = HeldOut.read(workspace, held_out).documents
        bits, sizes = {}, np.empty(0, dtype=np.int64)
        tasks: list[str] = []
        for name, arm in arms.items():
            of_documents = [read_bits(workspace.resolve(file)) for file in arm.models]
            bits[name], sizes = np.stack([one for one, _ in of_documents]), of_documents[0][1]
            if arm.answers:
                answers = [read_answers(workspace.resolve(file)) for file in arm.answers]
                bits[name] = np.hstack([bits[name], np.stack([one["bits"].to_numpy() for one in answers])])
                sizes = np.concatenate([sizes, answers[0]["bytes"].to_numpy()])
                tasks = answers[0]["task"].to_pylist()
        questions, none = [f"question {index}" for index in range(len(tasks))], [None] * len(tasks)
        return cls(
            bits=bits,
            sizes=sizes,
            sets=np.array([*documents["set"].to_pylist(), *map(task_set, tasks)], dtype=object),
            groups=np.array([*documents["group"].to_pylist(), *none], dtype=object),
            clusters=np.unique([*documents["cluster"].to_pylist(), *questions], return_inverse=True)[1],
            texts=np.array([*documents["text"].to_pylist(), *none], dtype=object),
        )

    def predictive_strengths(self) -> NDArray[np.float64]:
        """Return how well the losses on each of the corpus's documents predict the models' ability, (documents,).

        A model's ability is minus its bits per byte on the sets that are not of the corpus, their mean. NaN for
        documents of these sets, and for all where there are none, or no two models of different ability.
        """
        of_corpus = np.isin(self.sets, [POOL, GROUPS]) & (self.sizes > 0)
        targets = [name for name in dict.fromkeys(self.sets) if name not in {POOL, GROUPS}]
        found = np.full(len(self.sets), np.nan)
        models = np.concatenate(list(self.bits.values()))
        by_set = [models[:, own].sum(1) / self.sizes[own].sum() for own in (self.sets == name for name in targets)]
        ability = -np.mean(by_set, axis=0) if targets else np.zeros(len(models))
        if np.ptp(ability) > 0 and of_corpus.any():
            found[of_corpus] = predictive_strength(models[:, of_corpus], ability)
        return found

    def parquet(self) -> bytes:
        """Return the losses on the held-out documents as a Parquet file; answers to tasks have no text and no row."""
        rows = np.flatnonzero([text is not None for text in self.texts])
        strengths = self.predictive_strengths()[rows]
        columns: dict[str, Any] = {name: getattr(self, f"{name}s")[rows].tolist() for name in ("set", "group", "text")}
        columns |= {"bytes": self.sizes[rows], "predictive_strength": pa.array(strengths, mask=np.isnan(strengths))}
        sizes = np.maximum(self.sizes[rows], 1)
        for arm, of_seeds in self.bits.items():
            for seed, bits in enumerate(of_seeds):
                columns[f"{arm} seed {seed}"] = (bits[rows] / sizes).astype(np.float32)
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), buffer, compression="zstd")
        content: bytes = buffer.getvalue().to_pybytes()
        return content


def task_set(task: str) -> str:
    """Return the name of the set of a downstream task's gold answers."""
    return f"task {task}"
