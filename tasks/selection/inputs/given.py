"""Read what an earlier workspace selected, so that a new selection goes with it: `selection.given`."""

from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import STATIC, PipelineSettings
from fineweb_mask.tasks.catalog.views import catalog_files
from fineweb_mask.tasks.selection.inputs.shard_documents import VECTOR_COLUMNS
from fineweb_mask.tasks.storage.parquet import read_schema, read_table
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.references import digest, shard_and_tag
from fineweb_mask.tasks.workspace.workspace import Workspace

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
        files = _files(folder)
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
        files = _files(folder)
        for shard, masks in sorted(files["masks"].items()):
            chosen = pa.array(read_table(folder / masks, columns=["selected"])["selected"].to_numpy().nonzero()[0])
            path = folder / files["embeddings"][shard]
            columns = [name for name in VECTOR_COLUMNS if name in read_schema(path).names]
            vectors.append(vectors_of(read_table(path, columns=columns).take(chosen))[0])
            scores = read_table(folder / files["scores"][shard], columns=["quality"])["quality"]
            quality.append(scores.take(chosen).to_numpy())
        return np.concatenate(vectors), np.concatenate(quality)


def _files(folder: Path) -> dict[str, dict[str, str]]:
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
