"""A part of the dataset is written as soon as its own shards are selected from; the dataset is the same."""

import shutil

import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.engine.choices import PretrainedModels
from fineweb_mask.flows.engine.planning.plan import Plan
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
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.engine.jobs_at_once import JobsAtOnce, write_shard

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


def write(folder, corpus, *, early=True, jobs=None, **settings):
    """Write the dataset as a run does, the jobs of later stages first; return the jobs in the order of their work."""
    settings = settings_of(folder, corpus, **settings)
    jobs = jobs or JobsAtOnce(later_first=True)
    plan = Plan(jobs, Workspace(settings.workspace), settings, discover(settings.source), PretrainedModels.of(settings))
    for stage in (plan.ingest, plan.fit, plan.score, plan.embed, plan.deduplicate):
        stage()
    if early:
        plan.write_early()
    plan.select()
    plan.materialize()
    jobs.finish()
    return jobs.built


def dataset_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in tree_files(folder / "dataset")}


def test_a_part_is_written_before_the_last_shards_are_embedded(tmp_path, corpus):
    built = write(tmp_path / "early", corpus)
    assert [name for name in built if name.startswith("partition")] == PARTS
    assert built.index("partition 00000") < built.index("embed e")
    assert built.index("partition 00002") < built.index("survey survey")
    late = write(tmp_path / "late", corpus, early=False)
    assert late.index("embed f") < late.index("survey survey") < late.index("partition 00000")
    assert dataset_in(tmp_path / "early") == dataset_in(tmp_path / "late")
    assert not list((tmp_path / "early").glob("dataset-parts"))
    assert write(tmp_path / "early", corpus) == []


def test_a_part_without_a_column_of_later_shards_is_written_again(tmp_path, corpus):
    table = pq.read_table(corpus / "f.parquet")
    pq.write_table(table.append_column("stars", [list(range(30))]), corpus / "f.parquet")
    built = write(tmp_path / "early", corpus)
    assert [name for name in built if name.startswith("partition")] == [*PARTS, *PARTS[:2]]
    assert not (tmp_path / "early" / "dataset-parts").exists()
    write(tmp_path / "late", corpus, early=False)
    assert dataset_in(tmp_path / "early") == dataset_in(tmp_path / "late")


def test_a_shard_that_is_left_out_is_not_waited_for(tmp_path, corpus):
    path = corpus / "b.parquet"
    path.write_bytes(path.read_bytes()[:-100])  # the partition of a and b has only a
    jobs = JobsAtOnce(later_first=True)
    built = write(tmp_path / "early", corpus, jobs=jobs, block_size=30)
    assert list(jobs.quarantined) == ["b"]
    assert built.index("partition 00000") < built.index("embed e")
    assert len({name for name in dataset_in(tmp_path / "early") if "part-00000" in name}) > 0


@pytest.mark.parametrize("stop", [13, 20, 27])
def test_a_killed_run_goes_on_with_the_parts_that_it_wrote(tmp_path, corpus, stop):
    first = JobsAtOnce(later_first=True, stop_after=stop)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "early", corpus, jobs=first)
    second = write(tmp_path / "early", corpus)
    assert not set(first.built) & set(second)
    assert sorted([*first.built, *second]) == sorted(write(tmp_path / "whole", corpus))
    assert dataset_in(tmp_path / "early") == dataset_in(tmp_path / "whole")


def test_masks_that_are_there_write_no_part_of_a_dataset_that_is_there(tmp_path, corpus):
    write(tmp_path / "early", corpus)
    before = dataset_in(tmp_path / "early")
    assert write(tmp_path / "early", corpus) == []
    assert not (tmp_path / "early" / "dataset-parts").exists()
    shutil.rmtree(tmp_path / "early" / "dataset")
    assert {name.split()[0] for name in write(tmp_path / "early", corpus)} == {
        "survey",
        "partition",
        "count",
        "materialize",
    }
    assert dataset_in(tmp_path / "early") == before


def test_a_shuffled_dataset_has_no_early_parts(tmp_path, corpus):
    built = write(tmp_path / "early", corpus, shuffle=True)
    assert built.index("embed f") < built.index("shuffle 00000") < built.index("partition 00000")


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("removed", range(8))
def test_parts_that_a_killed_run_did_not_remove_are_removed_by_the_next(
    tmp_path, corpus, monkeypatch, removed, shuffle
):
    left, real = [removed], Parts._remove

    def stop_before_the_next(self, path):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(self, path)

    monkeypatch.setattr(Parts, "_remove", stop_before_the_next)
    try:
        write(tmp_path / "killed", corpus, shuffle=shuffle)
        assert removed >= 7  # three partitions and their counts, the survey
    except KeyboardInterrupt:
        assert list((tmp_path / "killed").glob("dataset-parts/*"))
    monkeypatch.undo()
    before = dataset_in(tmp_path / "killed")
    assert write(tmp_path / "killed", corpus, shuffle=shuffle) == []
    assert not list((tmp_path / "killed").glob("dataset-parts"))
    assert dataset_in(tmp_path / "killed") == before
