from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.dedup.semantic import cluster_centres, clusters_of, first_similar
from fineweb_mask.models.schemas import embeddings_schema
from fineweb_mask.models.settings.source import SemanticSettings
from fineweb_mask.tasks.dedup.buckets import BucketJob, bucket_jobs, find_in_bucket
from fineweb_mask.tasks.dedup.k_means import CentresJob, fit_cluster_centres
from fineweb_mask.tasks.dedup.sort import SortJob, sort_rows
from fineweb_mask.tasks.workspace.references import StageFile, StageKey
from fineweb_mask.tasks.workspace.stage_parquet import current_parquet, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

SETTINGS = SemanticSettings(threshold=0.95, cells=4)
ROWS, DIMENSIONS = 500, 16


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def vectors() -> np.ndarray:
    """Three shards of vectors, of which some repeat those of other shards nearly."""
    random = np.random.default_rng(0)
    found = random.normal(size=(3, ROWS, DIMENSIONS))
    found[1, :50] = found[0, 100:150] + 0.02 * random.normal(size=(50, DIMENSIONS))
    found[2, 7:17] = found[2, 27:37]
    return found.astype(np.float16)


def embeddings(workspace: Workspace, vectors: np.ndarray) -> list[StageFile]:
    files = []
    for name, shard in zip("abc", vectors, strict=True):
        key = StageKey(stage="embed", version=1, settings="", inputs=name)
        path, schema = workspace.shard_path("embeddings", name, key), embeddings_schema(DIMENSIONS, "float16")
        lists = pa.FixedSizeListArray.from_arrays(
            pa.array(shard.reshape(-1)), type=schema.field("embedding").type, mask=pa.array(np.arange(ROWS) == 3)
        )
        with stage_file_writer(path, schema, key) as writer:
            writer.write(pa.record_batch([pa.array(np.arange(ROWS), pa.uint32()), lists], schema=schema))
            writer.details = {"dimensions": DIMENSIONS}
        files.append(current_parquet(workspace, path, name, key))
    return files


def ordered(workspace: Workspace, vectors: np.ndarray) -> tuple[np.ndarray, list[StageFile]]:
    root, files = str(workspace.root), embeddings(workspace, vectors)
    fitting = CentresJob(root=root, embeddings=files[:1], model="m", settings=SETTINGS)
    centres = fit_cluster_centres(fitting)
    return np.load(fitting.path), [sort_rows(sort_job(root, file, centres)) for file in files]


def sort_job(root: str, file: StageFile, centres: StageFile) -> SortJob:
    return SortJob(root=root, by="cells", file=file, semantic=SETTINGS, centres=centres)


def test_clusters_hold_every_vector_once_in_their_order(workspace, vectors):
    centres, cells = ordered(workspace, vectors)
    assert centres.shape == (2, DIMENSIONS)  # of 499 documents
    for file, shard in zip(cells, vectors, strict=True):
        table = pq.read_table(workspace.resolve(file))
        assert sorted(table["row"].to_pylist()) == [row for row in range(ROWS) if row != 3]
        keys = table["key"].to_numpy()
        assert (np.diff(keys.astype(object)) >= 0).all()
        units = shard.astype(np.float32) / np.linalg.norm(shard.astype(np.float32), axis=1, keepdims=True)
        own = clusters_of(units[table["row"].to_numpy()], centres)
        assert keys.tolist() == [int(cell) * ((2**64 - 1) // 2) for cell in own]


def similar_jobs(workspace: Workspace, rows: list[StageFile], dimensions: int) -> list[BucketJob]:
    threshold = SETTINGS.threshold
    return bucket_jobs(str(workspace.root), "similar", rows, "1GB", threshold=threshold, dimensions=dimensions)


@pytest.mark.parametrize("buckets", [1, 2, 8])
def test_near_duplicates_of_all_shards_are_found_in_any_number_of_buckets(workspace, vectors, buckets):
    centres, cells = ordered(workspace, vectors)
    dimensions = buckets * 2**31 // (2 * sum(file.rows for file in cells))  # as if there were so many
    jobs = similar_jobs(workspace, cells, dimensions)
    assert len(jobs) == buckets
    found = pa.concat_tables(pq.read_table(workspace.resolve(find_in_bucket(job))) for job in jobs).to_pydict()
    pairs = dict(zip(found["document"], found["twin"], strict=True))
    places = [(shard, row) for shard in range(3) for row in range(ROWS) if row != 3]
    units = np.stack([vectors[shard, row].astype(np.float32) for shard, row in places])
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    own = clusters_of(units, centres)
    expected = {}
    for cell in range(len(centres)):
        members = np.flatnonzero(own == cell)
        for document, twin in zip(*first_similar(units[members], 0.95), strict=True):
            (shard, row), (other, twin_row) = places[members[document]], places[members[twin]]
            expected[shard * 2**32 + row] = other * 2**32 + twin_row
    assert pairs == expected
    assert len(pairs) >= 55
    assert pairs[2 * 2**32 + 27] == 2 * 2**32 + 7


def test_the_threshold_is_in_the_keys_of_what_depends_on_it(workspace, vectors):
    root, [file, *_] = str(workspace.root), embeddings(workspace, vectors)
    centres = fit_cluster_centres(CentresJob(root=root, embeddings=[file], model="m", settings=SETTINGS))
    job = sort_job(root, file, centres)
    other = SETTINGS.model_copy(update={"threshold": 0.9})
    assert job.model_copy(update={"semantic": other}).key != job.key
    fitting = CentresJob(root=root, embeddings=[file], model="m", settings=other)
    assert fitting.key == CentresJob(root=root, embeddings=[file], model="m", settings=SETTINGS).key


def test_no_documents_are_no_near_duplicates(workspace, vectors):
    centres = cluster_centres(np.eye(DIMENSIONS, dtype=np.float32), 1, 0)
    assert centres.shape == (1, DIMENSIONS)
    _, cells = ordered(workspace, vectors)
    [job] = similar_jobs(workspace, cells[:1], DIMENSIONS)
    assert find_in_bucket(job).rows == 0
