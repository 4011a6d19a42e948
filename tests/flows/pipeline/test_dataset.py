"""The dataset of a corpus of several partitions: what a killed run goes on from, and what it leaves."""

import shutil
from contextlib import suppress

import pytest

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.dataset import materialize
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.tasks.storage.atomic import tree_files
from tests.flows.pipeline.run_here import RunHere, recipe_of, write_shard

SHARDS = "abcdef"
PARTS = ["partition 00000", "partition 00001", "partition 00002"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, sample_corpus):
    """Six shards of 20 texts; two are a partition and a block."""
    folder = tmp_path_factory.mktemp("corpus")
    for number, name in enumerate(SHARDS):
        write_shard(folder, sample_corpus, name, range(20 * number, 20 * number + 20))
    return folder


def run_of(folder, corpus, *, stop_after=None, block_size=40):
    largest = max(path.stat().st_size for path in corpus.glob("*.parquet"))
    settings = recipe_of(
        folder,
        f"{corpus}/*.parquet",
        ingest={"exact_dedup": "off"},
        selection={"block_size": block_size, "solver": "mean_field", "metrics": "pairwise", "select_ratio": 0.2},
        materialize={"partition_size": largest + 1},
    )
    return RunHere(settings, stop_after=stop_after)


def write(folder, corpus, **options):
    """Write the dataset; return the jobs that were built, in the order of their work."""
    run = run_of(folder, corpus, **options)
    with suppress(KeyboardInterrupt):
        materialize(run, select(run, prepare(run)))
    return run.built


@pytest.fixture(scope="module")
def selected(tmp_path_factory, corpus):
    """A workspace in which everything is done but the dataset."""
    folder = tmp_path_factory.mktemp("selected") / "w"
    run = run_of(folder, corpus)
    select(run, prepare(run))
    return folder


@pytest.fixture(scope="module")
def whole(selected, corpus):
    """The workspace of a run that nothing disturbed, and the jobs that wrote its dataset."""
    folder = shutil.copytree(selected, selected.with_name("whole"))
    return folder, write(folder, corpus)


def dataset_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in tree_files(folder / "dataset")}


def test_partitions_are_written_by_jobs_of_their_own_and_leave_nothing(whole, corpus):
    folder, built = whole
    assert built == [*PARTS, "materialize dataset"]
    assert not list(folder.glob("dataset-parts"))
    assert write(folder, corpus) == []


def test_a_shard_that_is_quarantined_is_in_no_partition(tmp_path, sample_corpus):
    for number, name in enumerate("abcd"):
        write_shard(tmp_path, sample_corpus, name, range(20 * number, 20 * number + 20))
    path = tmp_path / "b.parquet"
    path.write_bytes(path.read_bytes()[:-100])  # the partition of a and b has only a
    run = run_of(tmp_path / "w", tmp_path, block_size=20)
    materialize(run, select(run, prepare(run)))
    assert list(run.quarantined) == ["b"]
    assert [name for name in run.built if name.startswith("partition")] == PARTS[:2]
    assert any("part-00000" in name for name in dataset_in(tmp_path / "w"))


@pytest.mark.long
def test_a_killed_run_goes_on_with_the_parts_that_it_wrote(tmp_path, corpus, selected, whole):
    killed = shutil.copytree(selected, tmp_path / "killed")
    first = write(killed, corpus, stop_after=1)
    assert list(killed.glob("dataset-parts"))
    assert [*first, *write(killed, corpus)] == whole[1]
    assert dataset_in(killed) == dataset_in(whole[0])
    assert not list(killed.glob("dataset-parts"))
