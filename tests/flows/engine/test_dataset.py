"""The dataset is written partition by partition, and a killed run goes on with those that it wrote."""

import shutil

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


def settings_of(folder, corpus):
    largest = max(path.stat().st_size for path in corpus.iterdir())
    return PipelineSettings(
        workspace=str(folder),
        source=SourceSettings(path=str(corpus)),
        ingest=IngestSettings(exact_dedup="off", min_chars=1),
        quality=QualitySettings(scorers=[ColumnScorerSettings(column="token_count")]),
        embedding=EmbeddingSettings(static_vocabulary=400, static_dimensions=16, chunk_documents=100),
        selection=PipelineSelectionSettings(block_size=60, metrics="pairwise", device="cpu", select_ratio=0.2),
        materialize=MaterializeSettings(partition_size=largest + 1),
    )


def write(folder, corpus, *, jobs=None):
    """Write the dataset as a run does; return the jobs in the order of their work."""
    settings = settings_of(folder, corpus)
    jobs = jobs or JobsAtOnce()
    plan = Plan(jobs, Workspace(settings.workspace), settings, discover(settings.source), PretrainedModels.of(settings))
    for stage in (plan.ingest, plan.fit, plan.score, plan.embed, plan.deduplicate):
        stage()
    plan.select()
    plan.materialize()
    jobs.finish()
    return jobs.built


def dataset_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in tree_files(folder / "dataset")}


@pytest.mark.parametrize("stop", [13, 20, 24])
def test_a_killed_run_goes_on_with_the_parts_that_it_wrote(tmp_path, corpus, stop):
    first = JobsAtOnce(stop_after=stop)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "killed", corpus, jobs=first)
    second = write(tmp_path / "killed", corpus)
    assert not set(first.built) & set(second)
    assert sorted([*first.built, *second]) == sorted(write(tmp_path / "whole", corpus))
    assert dataset_in(tmp_path / "killed") == dataset_in(tmp_path / "whole")


def test_a_dataset_that_is_there_is_not_written_and_a_lost_one_is_written_again(tmp_path, corpus):
    write(tmp_path / "run", corpus)
    before = dataset_in(tmp_path / "run")
    assert not (tmp_path / "run" / "dataset-parts").exists()
    assert write(tmp_path / "run", corpus) == []
    shutil.rmtree(tmp_path / "run" / "dataset")
    assert write(tmp_path / "run", corpus) == [*PARTS, "materialize dataset"]
    assert dataset_in(tmp_path / "run") == before


@pytest.mark.parametrize("removed", range(3))
def test_parts_that_a_killed_run_did_not_remove_are_removed_by_the_next(tmp_path, corpus, monkeypatch, removed):
    left, real = [removed], Parts._remove

    def stop_before_the_next(self, path):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(self, path)

    monkeypatch.setattr(Parts, "_remove", stop_before_the_next)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "killed", corpus)
    assert len(list((tmp_path / "killed").glob("dataset-parts/*"))) == 3 - removed
    monkeypatch.undo()
    before = dataset_in(tmp_path / "killed")
    assert write(tmp_path / "killed", corpus) == []
    assert not list((tmp_path / "killed").glob("dataset-parts"))
    assert dataset_in(tmp_path / "killed") == before
