"""The dataset of a corpus of several partitions: the jobs that write it, and what they leave."""

import pytest

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.dataset import materialize
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.tasks.dataset import partition
from fineweb_mask.tasks.storage.atomic import tree_files
from tests.flows.pipeline.run_here import RunHere, recipe_of, write_shard

PARTS = ["partition 00000", "partition 00001"]


@pytest.fixture
def corpus(tmp_path, sample_corpus, monkeypatch):
    """Four shards of 20 texts, each a block; two are a partition."""
    for number, name in enumerate("abcd"):
        write_shard(tmp_path, sample_corpus, name, range(20 * number, 20 * number + 20))
    largest = max(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    monkeypatch.setattr(partition, "PARTITION_BYTES", largest + 1)
    return tmp_path


def write(corpus):
    """Write the dataset, and return its run."""
    settings = recipe_of(
        corpus / "w",
        f"{corpus}/*.parquet",
        ingest={"exact_dedup": "off"},
        selection={"block_size": 20, "solver": "mean_field", "metrics": "pairwise", "select_ratio": 0.2},
    )
    run = RunHere(settings)
    materialize(run, select(run, prepare(run)))
    return run


def test_partitions_are_written_by_jobs_of_their_own_and_leave_nothing(corpus):
    assert write(corpus).built[-3:] == [*PARTS, "materialize dataset"]
    assert not list(corpus.glob("w/dataset-parts"))
    assert write(corpus).built == []


def test_a_shard_that_is_quarantined_is_in_no_partition(corpus):
    path = corpus / "b.parquet"
    path.write_bytes(path.read_bytes()[:-100])  # the partition of a and b has only a
    run = write(corpus)
    assert list(run.quarantined) == ["b"]
    assert [name for name in run.built if name.startswith("partition")] == PARTS
    assert any("part-00000" in path.name for path in tree_files(corpus / "w" / "dataset"))
