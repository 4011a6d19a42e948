"""Read what a workspace or a dataset holds of every document, so that two of them can be compared."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import DROPPED, MEASURED
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.dataset.verify import DATA_SUFFIX, Dataset
from fineweb_mask.tasks.ledger.decisions import NOT_SELECTED, SELECTED, SHOWN_CHARACTERS
from fineweb_mask.tasks.ledger.lookup import beside
from fineweb_mask.tasks.selection.inputs.shard_documents import read_groups
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.manifest import Manifest
from fineweb_mask.tasks.workspace.references import COUNTED, NEAR, SAME_URL, ShardFiles, digest
from fineweb_mask.tasks.workspace.stage_parquet import documents_of, duplicate_rows, open_parquet, read_scores
from fineweb_mask.tasks.workspace.workspace import Workspace

BATCH_ROWS = 5_000
FATES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("by_group", pa.string(), nullable=False),
        MEASURED.field("content_hash").with_nullable(True),  # null: of what ingest dropped
        pa.field("stage", pa.string(), nullable=False),  # the last that decided
        pa.field("reason", pa.string(), nullable=False),  # SELECTED, or why not
        pa.field("tokens", pa.int64()),
        pa.field("shard", pa.int32()),  # of the documents, with the row
        pa.field("row", pa.int64()),
        pa.field("beginning", pa.string()),  # of the text, where it was read
    ]
)
"""What is read of a document; the scores follow."""


class WorkspaceSide(NamedTuple):
    """The selection of a workspace."""

    name: str  # what a person calls it
    workspace: Workspace
    settings: PipelineSettings
    shards: list[ShardFiles]

    @property
    def scores(self) -> list[str]:
        """Names of the scores, the quality among them."""
        return _scores([scorer.name for scorer in self.settings.quality.scorers])

    @property
    def fingerprint(self) -> str:
        """A digest of what is read."""
        return digest([[shard.documents.fingerprint, shard.masks.fingerprint] for shard in self.shards])

    def fates(self, by: str) -> Iterator[pa.Table]:
        """Yield the documents, with a column whose values are groups: `FATES`, then the scores."""
        dropped = self.workspace.sizes("dropped")
        for index, shard in enumerate(track("shards", self.shards)):
            kept = self._kept(index, shard, by)
            yield kept
            if (path := beside(shard.documents, "dropped")) in dropped:
                with open_parquet(self.workspace.root / path) as file:
                    for batch in file.iter_batches(columns=[name for name in DROPPED.names if name != "text"]):
                        yield self._gone(pa.table(batch))

    def _kept(self, index: int, shard: ShardFiles, by: str) -> pa.Table:
        masks = read_table(self.workspace.resolve(shard.masks), columns=["selected", "block"])
        stages, reasons = self._decided(shard, masks)
        path = self.workspace.root / shard.documents.path
        with open_parquet(path) as file:
            documents = file.read(columns=["id", "url", "content_hash", "token_count"])
        n = documents.num_rows
        columns = {
            **{name: documents[name] for name in ("id", "url", "content_hash")},
            "by_group": pa.array(read_groups(self.workspace, shard, by), pa.string()),
            "stage": pa.array(stages, pa.string()),
            "reason": pa.array(reasons, pa.string()),
            "tokens": documents["token_count"],
            "shard": pa.array(np.full(n, index), pa.int32()),
            "row": pa.array(np.arange(n), pa.int64()),
            "beginning": pa.nulls(n, pa.string()),
        }
        names = read_schema(self.workspace.resolve(shard.scores)).names
        found = read_scores(self.workspace, shard, [name for name in self.scores if name in names])
        columns |= {name: pa.array(values, mask=np.isnan(values)) for name, values in found.items()}
        return _conformed(columns, self.scores)

    def _decided(self, shard: ShardFiles, masks: pa.Table) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """Return the last stage that decided on each document of a shard, and how, (rows,) each."""
        stages, reasons = (np.full(shard.rows, value, dtype=object) for value in ("select", NOT_SELECTED))
        reasons[masks["selected"].to_numpy()] = SELECTED
        reasons[masks["block"].is_null().to_numpy()] = "bad_vector"
        if shard.duplicates.rows:
            rows = duplicate_rows(self.workspace, shard.duplicates)
            stages[rows], reasons[rows] = "dedup", "duplicate"
            if any(map(shard.duplicates.details.get, COUNTED)):
                listed = read_table(self.workspace.resolve(shard.duplicates), columns=["twin_shard", "similarity"])
                reasons[rows[listed["twin_shard"].is_valid().to_numpy()]] = SAME_URL
                reasons[rows[listed["similarity"].is_valid().to_numpy()]] = NEAR
        return stages, reasons

    def _gone(self, dropped: pa.Table) -> pa.Table:
        n = dropped.num_rows
        constant = {"by_group": "", "stage": "ingest"}
        columns = {name: pa.array([value] * n, pa.string()) for name, value in constant.items()}
        columns |= {name: dropped[name] for name in ("id", "url", "reason")}
        return _conformed(columns, self.scores)

    def drops(self) -> Counter[tuple[str, str]]:
        """Return how many documents ingest drops, by stage and reason."""
        found = Counter[tuple[str, str]]()
        for shard in self.shards:
            found.update({("ingest", why): count for why, count in shard.documents.details["dropped"].items()})
        return found

    def texts(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Return the beginnings of the texts of documents that were not read, by shard and row."""
        found = dict[tuple[int, int], str]()
        for index in sorted({shard for shard, _ in places}):
            rows = sorted({row for shard, row in places if shard == index})
            wanted = np.array(rows, dtype=np.int64)
            texts = documents_of(self.workspace, self.shards[index].documents, wanted, ["text"])["text"].to_pylist()
            found |= {(index, row): text[:SHOWN_CHARACTERS] for row, text in zip(rows, texts, strict=True)}
        return found


class DatasetSide(NamedTuple):
    """The documents of a dataset, all of which are selected."""

    name: str  # what a person calls it
    dataset: Dataset
    manifest: Manifest

    @property
    def scores(self) -> list[str]:
        """Names of the scores, the quality among them."""
        recipe = self.manifest.details.get("recipe", {})
        return _scores([scorer.get("name", scorer["kind"]) for scorer in recipe.get("quality", {}).get("scorers", [])])

    @property
    def fingerprint(self) -> str:
        """A digest of what is read."""
        return digest({name: file.sha256 for name, file in self.manifest.files.items()})

    def fates(self, by: str) -> Iterator[pa.Table]:
        """Yield the documents, with a column whose values are groups: `FATES`, then the scores."""
        files = sorted(name for name in self.manifest.files if name.endswith(DATA_SUFFIX))
        wanted = {"id", "url", "text", "token_count", by, *self.scores}
        for name in track("files", files):
            for table in self._batches(name, wanted):
                yield self._selected(table, by)

    def _batches(self, name: str, wanted: set[str]) -> Iterator[pa.Table]:
        with self.dataset.open(name) as stream, VerifiedFile(stream, name) as file:
            columns = [column for column in file.schema_arrow.names if column in wanted]
            yield from map(pa.table, file.iter_batches(BATCH_ROWS, columns=columns))

    def _selected(self, table: pa.Table, by: str) -> pa.Table:
        n, present, texts = table.num_rows, set(table.column_names), table["text"].to_pylist()
        constant = {"stage": "select", "reason": SELECTED}
        columns = {name: pa.array([value] * n, pa.string()) for name, value in constant.items()}
        columns |= {name: table[name] for name in ("id", "url", *self.scores) if name in present}
        if by in present:
            columns["by_group"] = table[by].cast(pa.string()).fill_null("")
        if "token_count" in present:
            columns["tokens"] = table["token_count"]
        columns["content_hash"] = pa.array([content_hash(text) for text in texts], FATES.field("content_hash").type)
        columns["beginning"] = pc.utf8_slice_codeunits(table["text"], 0, SHOWN_CHARACTERS)
        return _conformed({"by_group": pa.array([""] * n, pa.string())} | columns, self.scores)

    def drops(self) -> Counter[tuple[str, str]]:
        """Return nothing: a dataset does not say what was dropped."""
        return Counter()

    def texts(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:  # noqa: ARG002 - see `WorkspaceSide`
        """Return nothing: all texts were read."""
        return {}


Side = WorkspaceSide | DatasetSide
"""One of two that are compared."""


def _scores(names: Sequence[str]) -> list[str]:
    return ["quality", *(name for name in names if name != "quality")]


def _conformed(columns: dict[str, Any], scores: Sequence[str]) -> pa.Table:
    """Return columns in the order of `FATES` and the scores; those that are missing are null."""
    schema = pa.schema([*FATES, *(pa.field(name, pa.float64()) for name in scores if name not in FATES.names)])
    n = len(columns["id"])
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(n, field.type) for field in schema
    ]
    return pa.table(arrays, schema=schema)
