"""Fixtures of the tests of datasets."""

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.schemas import MASKS, documents_schema, scores_schema
from fineweb_mask.models.settings import (
    MaterializeSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.tasks.dataset import partition
from fineweb_mask.tasks.dataset.output import described, write_record
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, read_manifest
from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.references import ShardFiles, StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.conftest import document
from tests.tasks.jobs import Making
from tests.tasks.stage_files import write_table

Row = tuple[str | None, bool]
"""A document's dump, and whether it is selected."""
WAYS = (("documents", "ingest"), ("scores", "score"), ("masks", "select"))


def write_shard(workspace, name, rows, first):
    n = len(rows)
    keys = {folder: StageKey(stage=stage, version=1, settings="", inputs=f"{name}{rows}") for folder, stage in WAYS}
    made = [
        document(first + row, dump=dump)
        | {"row": row, "source_row": row, "n_chars": 50 + row, "content_hash": bytes(16)}
        for row, (dump, _) in enumerate(rows)
    ]
    numbers = pa.array(range(n), pa.uint32())
    quality = pa.array(np.linspace(0, 1, n), pa.float32())
    masks = [numbers, [selected for _, selected in rows], quality, [name] * n]
    tables = {
        "documents": pa.Table.from_pylist(made, schema=documents_schema()),
        "scores": pa.table([numbers, quality, quality], schema=scores_schema(["edu"])),
        "masks": pa.table(masks, schema=MASKS),
    }
    details = {"rows_in": n, "dropped": {}, "excluded": {}}
    files = {
        folder: write_table(workspace, folder, name, table, keys[folder], **details) for folder, table in tables.items()
    }
    return ShardFiles(**files)


def make(root, shards, **settings):
    """Write the stage files of shards `000`, `001`, ..., whose documents are numbered throughout."""
    workspace = Workspace(root)
    files, first = [], 0
    for number, rows in enumerate(shards):
        files.append(write_shard(workspace, f"{number:03d}", rows, first))
        first += len(rows)
    selected = sum(chosen for rows in shards for _, chosen in rows)
    tokens = ("tokens_in", "tokens_ingested", "tokens_eligible", "tokens_selected", "tokens_estimated")
    documents = dict.fromkeys(("documents_in", "documents_ingested", "documents_eligible"), first)
    outcome = {"selected": selected, "not_selected": first - selected, "dropped": {}}
    counts = Counts(**documents, **outcome, **dict.fromkeys(tokens, 0))
    recipe = PipelineSettings(
        workspace=str(root),
        source=SourceSettings(path="unused"),
        quality=QualitySettings(scorers=[ColumnScorerSettings(name="edu", kind="column", column="token_count")]),
        selection=PipelineSelectionSettings(metrics="disf"),
        materialize=MaterializeSettings.model_validate(settings),
    )
    sources = [
        SourceShard(
            **dict.fromkeys(("name", "relative", "url"), file.name),
            **file.documents.model_dump(include={"bytes", "fingerprint"}),
            format="parquet",
        )
        for file in files
    ]
    return Making(workspace, files, sources, counts, [], recipe)


class KilledError(BaseException):
    """Ends a run or a publication as a kill does: nothing of it runs on."""


def record_again(dataset, **details):
    """Write the record that fits a dataset's files as they are now."""
    manifest = read_manifest(dataset / PROVENANCE)
    assert manifest is not None
    files = [path for path in tree_files(dataset) if path.name != PROVENANCE]
    write_record(dataset, manifest.key, described(dataset, files), manifest.details | details)


@pytest.fixture
def a_partition_each(monkeypatch):
    """Have every shard be a partition."""
    monkeypatch.setattr(partition, "PARTITION_BYTES", 1)


@pytest.fixture
def four_shards():
    """Four shards of documents of three dumps, of which two thirds are selected."""
    return [[(f"D{(shard + row) % 3}", row % 3 > 0) for row in range(12 + shard)] for shard in range(4)]
