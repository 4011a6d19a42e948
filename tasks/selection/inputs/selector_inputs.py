"""Read what some selectors also need: separate scores, groups, targets, importance weights, an earlier selection."""

import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import STATIC, PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.catalog.views import catalog_files
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.inference.scorers import QualityModel, load_models
from fineweb_mask.tasks.selection.inputs.shard_documents import read_groups
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, digest, shard_and_tag
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection import SelectorInputs

BATCH_ROWS = 1_000
"""Texts that are read at a time."""
LEAST_TOKENS = 100
"""Words and punctuation below which `dsir` selects a document last: the threshold of its published code."""
TEXTS = pa.schema([pa.field("text", pa.string())])
STAGES = ("masks", "embeddings", "scores")


class EarlierSelection(BaseModel):
    """The selection of a workspace's last run, by its files."""

    model_config = ConfigDict(frozen=True)

    path: str
    fingerprint: str

    @classmethod
    def of(cls, settings: PipelineSettings) -> Self | None:
        """Find the selection that a recipe names; None if it names none.

        Raises
        ------
        SettingsError
            If the folder holds no finished selection with stored vectors, or those of another encoder.
        """
        given = settings.selection.given
        if given is None:
            return None
        folder = Path(given.path)
        if folder.resolve() == Path(settings.workspace).resolve():
            raise SettingsError(
                f"selection.given.path: {given.path!r} is the recipe's own workspace, whose selection a run replaces: "
                "name an earlier workspace, or set another one for the new documents"
            )
        files = _files_of(folder)
        if not files["masks"] or files["masks"].keys() - files["embeddings"].keys():
            raise SettingsError(
                f"selection.given.path: {given.path!r} must be a local workspace with a selection and its vectors: "
                "run its recipe to the end"
            )
        _check_encoder(folder, settings)
        return cls(path=str(folder.resolve()), fingerprint=digest(sorted(files["masks"].items())))

    def read(self) -> tuple[NDArray[np.floating[Any]], NDArray[np.float32]]:
        """Return the vectors, (h, d), and the quality, (h,), of the selected documents."""
        from fineweb_mask.models.embedding.arrow import vectors_of

        folder, vectors, quality = Path(self.path), list[NDArray[Any]](), list[NDArray[np.float32]]()
        files = _files_of(folder)
        for shard, masks in sorted(files["masks"].items()):
            chosen = pa.array(read_table(folder / masks, columns=["selected"])["selected"].to_numpy().nonzero()[0])
            path = folder / files["embeddings"][shard]
            vectors.append(vectors_of(read_table(path, columns=["embedding"]).take(chosen))[0])
            scores = read_table(folder / files["scores"][shard], columns=["quality"])["quality"]
            quality.append(scores.take(chosen).to_numpy())
        return np.concatenate(vectors), np.concatenate(quality)


def _files_of(folder: Path) -> dict[str, dict[str, str]]:
    """Return the files of the last run, by stage and shard."""
    found: dict[str, dict[str, str]] = {stage: {} for stage in STAGES}
    for stage in STAGES:
        for path in catalog_files(folder, stage) or ():
            if (named := shard_and_tag(path.removeprefix(f"{stage}/"))) is not None:
                found[stage][named[0]] = path
    return found


def _check_encoder(folder: Path, settings: PipelineSettings) -> None:
    """Check that both workspaces embed by one model; the built-in encoder of the earlier one is a folder in it."""
    ours, theirs = settings.embedding.model, LastRun.load(Workspace(str(folder))).settings.embedding.model
    if theirs != STATIC:
        if ours != theirs:
            raise SettingsError(
                f"selection.given: its vectors are made by {theirs!r}, this recipe's by {ours!r}: "
                f"set embedding.model to {theirs!r}"
            )
        return
    fitted = sorted(path for path in (folder / "fitted").glob("encoder.*") if path.is_dir())
    if Path(ours).resolve() not in {path.resolve() for path in fitted}:
        raise SettingsError(
            "selection.given: its vectors are made by the encoder that was fitted there: set embedding.model to "
            f"{str(fitted[-1]) if fitted else 'that encoder'!r}"
        )


class FewScores:
    """Scores any documents of a group of shards from their texts.

    The texts are first copied, uncompressed, to a file that no folder lists and that is gone with this object: no more
    of them are in memory than are being scored.

    Parameters
    ----------
    workspace, shards
        The documents.
    model
        Scores them.
    holds_gpu
        Whether the caller already has its share of the GPU.
    """

    def __init__(
        self, workspace: Workspace, shards: list[ShardFiles], model: QualityModel, *, holds_gpu: bool = False
    ) -> None:
        [self._scorer] = load_models(workspace, [model]).values()
        self._device = "cpu" if holds_gpu else str(getattr(self._scorer, "device", "cpu"))  # to wait for
        self._texts = _copied(workspace, shards)

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the scores of some rows of the group, (k,): (k,)."""
        texts = [self._texts[row].as_py() or "" for row in rows.tolist()]
        with gpu_slot(self._device):
            return self._scorer.score(texts)


def _copied(workspace: Workspace, shards: list[ShardFiles]) -> pa.ChunkedArray:
    """Return the texts of shards, memory-mapped from a file without a name."""
    workspace.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=workspace.cache) as file:
        with pa.ipc.new_stream(file, TEXTS) as stream:
            for shard in shards:
                for texts in _texts(workspace, shard):
                    stream.write_batch(pa.record_batch([texts.cast(pa.string())], schema=TEXTS))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()["text"]


def read_inputs(
    workspace: Workspace,
    shards: list[ShardFiles],
    settings: PipelineSelectionSettings,
    targets: StageFile | None,
    given: EarlierSelection | None = None,
    scorer: QualityModel | None = None,
) -> "SelectorInputs":
    """Read what the solver of the settings reads of the documents of a group of shards, one after the other.

    `targets` is what `fit_targets` wrote, and `scorer` a model for the solver that scores few documents.
    """
    from fineweb_mask.models.selection import Given, SelectorInputs, Targets

    reads = SELECTORS[settings.solver].reads
    fitted = {} if targets is None else read_arrays(workspace.resolve(targets))
    found: dict[str, Any] = {"given": None if given is None else Given(*given.read())}
    if "scores" in reads:
        parts = [_read_scores(workspace, shard) for shard in shards]
        found["scores"] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if "groups" in reads and settings.group_column is not None:
        found["groups"] = np.concatenate([read_groups(workspace, shard, settings.group_column) for shard in shards])
    if "text" in reads and fitted:
        ratios = fitted["log_ratios"]
        if settings.dsir.by_task:
            ratios, found["task_examples"] = fitted["task_log_ratios"], fitted["task_examples"]
        found["log_weights"] = np.concatenate([_weigh_texts(workspace, shard, ratios) for shard in shards])
    if "targets" in reads and fitted:
        found["targets"] = Targets(fitted["vectors"], fitted["tasks"])
    if "scorer" in reads and scorer is not None:
        holds_gpu = torch_device(settings.device).type != "cpu"
        found["score"] = FewScores(workspace, shards, scorer, holds_gpu=holds_gpu).of
    return SelectorInputs(**found)


def _read_scores(workspace: Workspace, shard: ShardFiles) -> dict[str, NDArray[np.float32]]:
    path = workspace.resolve(shard.scores)
    names = [name for name in read_schema(path).names if name not in {"row", "quality"}]
    table = read_table(path, columns=names)
    return {name: table[name].to_numpy() for name in names}


def _weigh_texts(workspace: Workspace, shard: ShardFiles, ratios: NDArray[np.float64]) -> NDArray[np.float32]:
    from fineweb_mask.models.quality.importance import NgramBuckets

    buckets = NgramBuckets()
    found = [
        buckets.log_weights([text or "" for text in texts.to_pylist()], ratios, LEAST_TOKENS)
        for texts in _texts(workspace, shard)
    ]
    return np.concatenate([np.empty((0, *ratios.shape[:-1]), dtype=np.float32), *found])


def _texts(workspace: Workspace, shard: ShardFiles) -> Iterator[pa.StringArray]:
    """Yield the texts of a shard's documents, some at a time."""
    with VerifiedFile(workspace.resolve(shard.documents)) as file:
        batches = file.iter_batches(BATCH_ROWS, columns=["text"])
        for batch in track_by_size("texts", batches, shard.rows, lambda batch: batch.num_rows):
            yield batch["text"]
