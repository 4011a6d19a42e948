"""The dataset of a corpus of several partitions: what a killed run goes on from, and what it leaves."""

from contextlib import suppress

import pytest

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.dataset import materialize
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.models.settings import (
    EmbeddingSettings,
    IngestSettings,
    MaterializeSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.tasks.dataset.parts import Parts
from fineweb_mask.tasks.storage.atomic import tree_files
from tests.flows.pipeline.run_here import RunHere, write_shard

SHARDS = "abcdef"
PARTS = ["partition 00000", "partition 00001", "partition 00002"]


@pytest.fixture
def corpus(tmp_path, sample_corpus):
    """Six shards of 30 texts; two are a partition and a block."""
    (tmp_path / "corpus").mkdir()
    for number, name in enumerate(SHARDS):
        write_shard(tmp_path / "corpus", sample_corpus, name, range(30 * number, 30 * number + 30))
    return tmp_path / "corpus"


def settings_of(folder, corpus, *, block_size=60, select_ratio=0.2, **materialize):
    largest = max(path.stat().st_size for path in corpus.iterdir())
    return PipelineSettings(
        workspace=str(folder),
        source=SourceSettings(path=str(corpus)),
        ingest=IngestSettings(exact_dedup="off", min_chars=1),
        quality=QualitySettings(scorers=[ColumnScorerSettings(column="token_count")]),
        embedding=EmbeddingSettings(static_dimensions=16),
        selection=PipelineSelectionSettings(
            block_size=block_size, metrics="pairwise", device="cpu", select_ratio=select_ratio
        ),
        materialize=MaterializeSettings(partition_size=largest + 1, **materialize),
    )


def write(folder, corpus, *, stop_after=None, **settings):
    """Write the dataset; return the jobs that were built, in the order of their work."""
    run = RunHere(settings_of(folder, corpus, **settings), stop_after=stop_after)
    with suppress(KeyboardInterrupt):
        materialize(run, select(run, prepare(run)))
    return run.built, run


def dataset_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in tree_files(folder / "dataset")}


def test_partitions_are_written_by_jobs_of_their_own_and_leave_nothing(tmp_path, corpus):
    built, _ = write(tmp_path / "w", corpus)
    assert [name for name in built if name.startswith("partition")] == PARTS
    assert not list((tmp_path / "w").glob("dataset-parts"))
    assert write(tmp_path / "w", corpus)[0] == []


def test_a_shard_that_is_quarantined_is_in_no_partition(tmp_path, corpus):
    path = corpus / "b.parquet"
    path.write_bytes(path.read_bytes()[:-100])  # the partition of a and b has only a
    built, run = write(tmp_path / "w", corpus, block_size=30)
    assert list(run.quarantined) == ["b"]
    assert [name for name in built if name.startswith("partition")] == PARTS
    assert len({name for name in dataset_in(tmp_path / "w") if "part-00000" in name}) > 0


@pytest.mark.parametrize("stop", [20, pytest.param(27, marks=pytest.mark.long)])
def test_a_killed_run_goes_on_with_the_parts_that_it_wrote(tmp_path, corpus, stop):
    first, _ = write(tmp_path / "killed", corpus, stop_after=stop)
    second, _ = write(tmp_path / "killed", corpus)
    assert not set(first) & set(second)
    assert sorted([*first, *second]) == sorted(write(tmp_path / "whole", corpus)[0])
    assert dataset_in(tmp_path / "killed") == dataset_in(tmp_path / "whole")


@pytest.mark.parametrize("removed", [2, pytest.param(4, marks=pytest.mark.long)])
def test_parts_that_a_killed_run_did_not_remove_are_removed_by_the_next(tmp_path, corpus, monkeypatch, removed):
    left, real = [removed], Parts._remove

    def stop_before_the_next(self, path):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(self, path)

    monkeypatch.setattr(Parts, "_remove", stop_before_the_next)
    try:
        run = RunHere(settings_of(tmp_path / "killed", corpus))
        materialize(run, select(run, prepare(run)))
        assert removed >= 3  # the partitions
    except KeyboardInterrupt:
        assert list((tmp_path / "killed").glob("dataset-parts/*"))
    monkeypatch.undo()
    before = dataset_in(tmp_path / "killed")
    assert write(tmp_path / "killed", corpus)[0] == []
    assert not list((tmp_path / "killed").glob("dataset-parts"))
    assert dataset_in(tmp_path / "killed") == before
