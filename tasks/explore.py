"""Prepare a map of a workspace's documents: places, texts, scores, neighbours, and whether each is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineweb_mask.models.analysis.groups import telling_words
from fineweb_mask.models.analysis.vectors import Unit, lay_out, unit_rows
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.schemas import MEASURED
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.tasks.reporting.geometry import clustered
from fineweb_mask.tasks.reporting.samples import Places, draw, files_read, rows_at, vectors_at
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

SEED = 0
TEXT_CHARACTERS = 2_000
"""Shown of each document."""
NEIGHBOURS = 10
"""Shown of each document."""
COUNTED = 63
"""Nearest documents among which near-duplicates are counted."""
TOPICS = 24
NAMING_DOCUMENTS = 10_000
"""Documents whose words name the topics."""
KEPT, LEFT_OUT = "kept", "left out"
OWN = ("number", "x", "y", "text", "kept", "topic", "near_duplicates", "nearest_cosine", "neighbours")
"""Columns of the map, except those of the source and the scores."""
HIDDEN = {"row", "text", *MEASURED.names} - {"n_chars"}
"""Columns of documents and scores that the map leaves out."""


class ExploreJob(ProductJob):
    """Prepare the map of a workspace."""

    stage: ClassVar[Stage] = Stage("explore", version=8, folders=("explore",))
    name: ClassVar[str] = "explore"
    shards: list[ShardFiles]
    most: int  # documents

    @property
    def path(self) -> Path:
        """The table of the documents on the map."""
        return self.workspace.root / "explore" / "documents.parquet"

    @property
    def manifest_path(self) -> Path:
        """The record of the table."""
        return self.path.with_name("manifest.json")

    def depends_on(self) -> Dependencies:
        """Return how many documents are shown, and the files that they are read from."""
        return Dependencies(settings=self.most, inputs=files_read(self.shards))


@stage_task
def explore(job: ExploreJob) -> None:
    """Write a row for each document of the map.

    `x` and `y` are its place, `near_duplicates` counts the documents of the map that are near-duplicates of it, up to
    63, `neighbours` are the numbers of the nearest, with their distances, 1 - cosine.

    Raises
    ------
    DataError
        If there is nothing to show.
    """
    workspace = job.workspace
    sample, _ = draw(workspace, job.shards, job.most, np.random.default_rng(SEED))
    if not len(sample.places):
        raise DataError("no document was selected from, so there is no map: run the pipeline first")
    table = _documents(workspace, job.shards, sample.places)
    unit = unit_rows(vectors_at(workspace, job.shards, sample.places))
    places = lay_out(unit, seed=SEED)
    columns: dict[str, pa.Array] = {
        "topic": pa.array(_topics(unit, table["text"].to_pylist())),
        **_neighbours(unit),
        "number": pa.array(np.arange(len(unit), dtype=np.int64)),
        "x": pa.array(places[:, 0]),
        "y": pa.array(places[:, 1]),
    }
    first = ("kept", "quality", "text")
    rest = [name for name in table.column_names if name not in (*OWN, *first)]
    table = pa.table({name: table[name] for name in first} | columns | {name: table[name] for name in rest})
    job.path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(job.path) as partial:
        pq.write_table(table, partial, write_page_checksum=True)
    write_manifest(job.manifest_path, job.key, [job.path], {"rows": table.num_rows, "of": sample.population})


def _documents(workspace: Workspace, shards: Sequence[ShardFiles], places: Places) -> pa.Table:
    """Return the documents at some places: plain columns of the source, the beginnings of texts, scores, `kept`."""
    documents, scores = (rows_at(workspace, shards, places, stage) for stage in ("documents", "scores"))
    masks = rows_at(workspace, shards, places, "masks", ["selected", "inclusion"])
    shown = [field.name for field in documents.schema if not pa.types.is_nested(field.type)]
    columns = {name: documents[name] for name in shown} | {name: scores[name] for name in scores.column_names}
    columns["inclusion"] = masks["inclusion"]
    free = {f"source_{name}" if name in OWN else name: one for name, one in columns.items() if name not in HIDDEN}
    texts = pc.utf8_slice_codeunits(documents["text"], 0, TEXT_CHARACTERS)
    return pa.table({**free, "text": texts, "kept": pc.if_else(masks["selected"], KEPT, LEFT_OUT)})


def _neighbours(unit: Unit) -> dict[str, pa.Array]:
    """Return `near_duplicates`, `nearest_cosine` and `neighbours` of unit rows (n, d)."""
    import torch

    from fineweb_mask.models.selection.neighbours import nearest
    from fineweb_mask.models.selection.rows import Rows

    rows = Rows(torch.from_numpy(unit))
    found = nearest(rows, COUNTED + 1)
    shown = slice(1, NEIGHBOURS + 1)  # itself is the first
    index, cosine = found.index[shown].T.numpy().astype(np.int64), found.similarity[shown].T.numpy()
    counts = (found.similarity[1:] >= NEAR_DUPLICATE).sum(0)
    lists = [pa.array(list(index), pa.list_(pa.int64())), pa.array(list(1 - cosine), pa.list_(pa.float32()))]
    return {
        "near_duplicates": pa.array(counts.numpy()),
        "nearest_cosine": pa.array(cosine[:, 0] if cosine.size else np.zeros(len(unit), dtype=np.float32)),
        "neighbours": pa.StructArray.from_arrays(lists, ["ids", "distances"]),
    }


def _topics(unit: Unit, texts: Sequence[str | None]) -> list[str]:
    """Return the words of each row's cluster."""
    labels, n_topics = clustered(unit, TOPICS)
    step = max(1, -(-len(unit) // NAMING_DOCUMENTS))
    words = telling_words([text or "" for text in texts[::step]], labels[::step], n_topics)
    names = [name or f"topic {number + 1}" for number, name in enumerate(words)]
    return [names[label] for label in labels]
