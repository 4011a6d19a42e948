"""One selection over a corpus, as jobs: the same as in one process, resumable, and a rule that new shards can use."""

import shutil
from dataclasses import asdict

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.selection import jobs_by_policy, learn_policy
from fineweb_mask.flows.pipeline.selection import select as select_documents
from fineweb_mask.models.selection.corpus.whole import select_corpus
from fineweb_mask.models.settings import EmbeddingSettings, PipelineSelectionSettings, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.corpus.learning import KeepPolicyJob, LearnJob
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_parts
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.pipeline.run_here import RunHere, write_shard
from tests.flows.pipeline.test_selection import run_of
from tests.tasks.number_shards import numbers

SIZES = {"a": 300, "b": 90, "empty": 0, "c": 500, "d": 260}
RATE = 0.4


def settings_of(**changes):
    return PipelineSelectionSettings(
        **{"scope": "global", "select_ratio": 0.2, "device": "cpu", "metrics": "disf", "lamb": 0.9} | changes
    )


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path)


@pytest.fixture
def shards(workspace):
    return [
        numbers(
            workspace, name, rows, seed=seed, duplicates=(1, 2) if name == "a" else (), bad=(5,) if name == "c" else ()
        )
        for seed, (name, rows) in enumerate(SIZES.items())
    ]


def learn(workspace, shards, settings, *, force=False, **options):
    """Return the kept rule and the run that learned it."""
    run = run_of(workspace, settings, **options)
    keep = KeepPolicyJob(root=run.root, settings=settings, models=["m"], force=force)
    if run.done(keep) is None:
        keep = keep.model_copy(update={"learned": learn_policy(run, shards, keep, RATE)})
    return run.one(keep), run


def masks_of(workspace, shards, settings, rule, run=None):
    """Return the masks of the shards, in their order."""
    run = run or run_of(workspace, settings)
    keep = KeepPolicyJob(root=run.root, settings=settings, models=["m"])
    jobs = jobs_by_policy(run, shards, keep, rule)
    run.all(jobs)
    found = {name: file for job in jobs for name, file in run.files_of(job).items()}
    return [pq.read_table(workspace.resolve(found[shard.name])) for shard in shards]


@pytest.mark.parametrize("by", ["documents", "tokens"])
@pytest.mark.parametrize("metrics", ["pairwise", "disf"])
@pytest.mark.parametrize("weight", [0, 1])
def test_jobs_select_what_one_process_selects(workspace, shards, by, metrics, weight):
    settings = settings_of(metrics=metrics, budget_by=by, near_duplicates={"weight": weight})
    rule, jobs = learn(workspace, shards, settings)
    if not weight:
        assert len(jobs.built) == 5 + 1 + 2 * (5 + 1) + 1
    parts = [
        part for shard in shards for _, part in read_parts(workspace, shard, read_columns(workspace, shard), settings)
    ]
    expected = select_corpus(lambda: parts, settings, rate=RATE)
    assert rule.details["objective"] == expected.objective
    assert [step["upper_bound"] for step in rule.details["steps"]] == [step.upper_bound for step in expected.steps]
    assert rule.details["ranges"] == asdict(expected.ranges)
    tables = masks_of(workspace, shards, settings, rule)
    selected = [table["selected"].to_numpy() for table in tables]
    assert sum(int(mask.sum()) for mask in selected) == sum(int(mask.sum()) for mask in expected.masks)
    if by == "documents":
        assert sum(int(mask.sum()) for mask in selected) == round(0.2 * (1150 - 3))
    candidates = [read_columns(workspace, shard).candidate for shard in shards]
    np.testing.assert_array_equal(
        np.concatenate([mask[candidate] for mask, candidate in zip(selected, candidates, strict=True)]),
        np.concatenate(expected.masks),
    )
    for table, candidate in zip(tables, candidates, strict=True):
        assert not table["selected"].to_numpy()[~candidate].any()
        np.testing.assert_array_equal(table["inclusion"].is_valid().to_numpy(), candidate)


@pytest.fixture
def twins(workspace):
    """Two shards of the same documents, and one of others."""
    return [numbers(workspace, name, 300, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]


def test_near_duplicates_in_different_shards_are_charged(workspace, twins):
    both = []
    for weight in (0, 5):
        settings = settings_of(near_duplicates={"weight": weight})
        rule, _ = learn(workspace, twins, settings)
        first, second, third = (table["selected"].to_numpy() for table in masks_of(workspace, twins, settings, rule))
        assert first.sum() + second.sum() + third.sum() == 180
        both.append(int((first & second).sum()))
    assert both[0] > 50
    assert both[1] == 0
    assert rule.details["terms"]["near_duplicate_cost"] >= 0
    assert rule.details["objective"] <= rule.details["steps"][-1]["upper_bound"]


def test_what_they_pay_is_found_anew_for_new_shards_and_not_again_when_files_are_removed(workspace, twins):
    settings = settings_of(near_duplicates={"weight": 5})
    rule, _ = learn(workspace, twins[1:], settings)
    before = run_of(workspace, settings)
    masks_of(workspace, twins[1:], settings, rule, before)
    assert not [name for name in before.built if name.startswith("measure ")]  # the candidates are those of the passes
    jobs = run_of(workspace, settings)
    first, second, _ = (table["selected"].to_numpy() for table in masks_of(workspace, twins, settings, rule, jobs))
    assert not (first & second).any()
    assert first.any()
    assert "measure a" in jobs.built
    assert "measure b" not in jobs.built
    for folder in ("samples", "passes", "rules", "charges"):
        shutil.rmtree(workspace.root / folder)
    again = run_of(workspace, settings)
    masks_of(workspace, twins, settings, rule, again)
    assert again.built == []


def test_more_candidates_are_looked_at_where_many_pay(workspace, twins, monkeypatch):
    from fineweb_mask.models.selection.corpus import sample

    settings = settings_of(near_duplicates={"threshold": 0.6})
    right, _ = learn(workspace, twins, settings)
    monkeypatch.setattr(sample.SampleProblem.__init__, "__kwdefaults__", {"ranges": None, "frame": None, "spare": 1.01})
    other = Workspace(workspace.root / "other")
    there = [numbers(other, name, 300, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    rule, _ = learn(other, there, settings)
    assert rule.details["spare"] > 1.01
    assert rule.details["objective"] == pytest.approx(right.details["objective"], abs=0.02)


def test_what_the_reports_read_is_of_the_corpus(workspace, shards):
    settings = settings_of(metrics="pairwise", near_duplicates={"weight": 0})
    rule, _ = learn(workspace, shards, settings)
    [mask] = [SelectJob(root=str(workspace.root), shards=[shards[0]], settings=settings, policy=rule)]
    [block] = select(mask).details["blocks"]
    assert (block["name"], block["documents"]) == ("a", 298)
    assert block["random_objective"] < block["objective"] <= block["upper_bound"] + 1e-6
    assert 0 <= block["gap"] < 0.2
    assert block["terms"].keys() == {"quality", "diversity", "mean_quality", "pairwise"}
    assert [step for step, _ in block["history"]] == [1, 2]
    weighed = settings.lamb * block["terms"]["quality"] + (1 - settings.lamb) * block["terms"]["diversity"]
    assert block["objective"] == pytest.approx(weighed, rel=1e-6)


def test_the_order_of_work_does_not_matter_and_a_killed_run_goes_on(workspace, shards, tmp_path):
    settings = settings_of()
    rule, jobs = learn(workspace, shards, settings)
    other = Workspace(tmp_path / "other")
    there = [
        numbers(other, name, rows, seed=seed, duplicates=(1, 2) if name == "a" else (), bad=(5,) if name == "c" else ())
        for seed, (name, rows) in enumerate(SIZES.items())
    ]
    for seed in range(3):
        with pytest.raises(KeyboardInterrupt):
            learn(other, there, settings, seed=seed, stop_after=4)
    again, resumed = learn(other, there, settings, seed=7)
    assert len(resumed.built) == len(jobs.built) - 12
    assert again.fingerprint == rule.fingerprint
    assert other.resolve(again).read_bytes() == workspace.resolve(rule).read_bytes()


def test_new_shards_are_selected_from_by_the_same_rule(workspace, shards):
    settings = settings_of(near_duplicates={"weight": 0})
    rule, _ = learn(workspace, shards, settings)
    before = [table["selected"].to_pylist() for table in masks_of(workspace, shards, settings, rule)]
    new = numbers(workspace, "new", 200, seed=9)
    keep = KeepPolicyJob(root=str(workspace.root), settings=settings, models=["m"])
    found = keep.current()
    assert found is not None
    assert found.fingerprint == rule.fingerprint
    tables = masks_of(workspace, [*shards, new], settings, found)
    assert [table["selected"].to_pylist() for table in tables[:-1]] == before
    assert 10 < sum(tables[-1]["selected"].to_pylist()) < 80
    refitted, _ = learn(workspace, [*shards, new], settings, force=True)
    assert refitted.fingerprint != rule.fingerprint
    assert refitted.details["budget"] == round(0.2 * (1347))
    assert KeepPolicyJob(root=str(workspace.root), settings=settings, models=["other"]).current() is None
    assert KeepPolicyJob(root=str(workspace.root), settings=settings_of(lamb=0.8), models=["m"]).current() is None


def test_a_threshold_outside_the_margin_is_found_by_another_pass(workspace, shards, monkeypatch):
    from fineweb_mask.models.selection.corpus import sample

    settings = settings_of()
    right, jobs = learn(workspace, shards, settings)
    monkeypatch.setattr(sample, "DEVIATIONS", 0.01)
    other = Workspace(workspace.root / "other")
    there = [
        numbers(other, name, rows, seed=seed, duplicates=(1, 2) if name == "a" else (), bad=(5,) if name == "c" else ())
        for seed, (name, rows) in enumerate(SIZES.items())
    ]
    rule, more = learn(other, there, settings)
    assert len(more.built) > len(jobs.built)
    first, expected = (file.details["steps"][0] for file in (rule, right))
    for name in ("objective", "upper_bound"):
        assert first[name] == pytest.approx(
            expected[name], rel=1e-5
        )  # the next rule is learned from sums with other rounding


def test_lost_files_of_the_rule_are_noticed(workspace, shards):
    settings = settings_of()
    rule, _ = learn(workspace, shards, settings)
    keep = KeepPolicyJob(root=str(workspace.root), settings=settings, models=["m"])
    assert keep.paths() == [keep.manifest_path, workspace.resolve(rule)]
    workspace.resolve(rule).unlink()
    assert keep.current() is None
    rebuilt, jobs = learn(workspace, shards, settings)
    assert jobs.built == ["keep_rule selection-rule"]
    assert rebuilt.fingerprint == rule.fingerprint


def test_jobs_do_not_depend_on_how_blocks_are_cut_or_where_they_run():
    one, other = (
        LearnJob(root="/w", settings=settings_of(**changes), number=0, samples=[]).key
        for changes in ({}, {"block_size": 5, "device": "auto"})
    )
    assert one == other


@pytest.fixture
def corpus(tmp_path, sample_corpus):
    """Two shards of real texts; those of the second are partly those of the first."""
    (tmp_path / "corpus").mkdir()
    write_shard(tmp_path / "corpus", sample_corpus, "a", range(400))
    write_shard(tmp_path / "corpus", sample_corpus, "b", range(380, 700))
    return tmp_path / "corpus"


def selected(folder, corpus, *, sample=200, weight=0, **changes):
    """Run everything up to the selection; return the run and what was selected."""
    settings = PipelineSettings(
        workspace=str(folder),
        source=SourceSettings(path=str(corpus)),
        quality=QualitySettings(scorers=[ColumnScorerSettings(column="token_count")]),
        embedding=EmbeddingSettings(static_dimensions=16),
        selection=settings_of(
            metrics="pairwise", passes=1, sample=sample, near_duplicates={"weight": weight}, **changes
        ),
    )
    run = RunHere(settings)
    return run, select_documents(run, prepare(run))


def test_a_corpus_that_is_no_larger_than_the_sample_is_one_block(tmp_path, corpus):
    """20 selected for each of the 16 numbers of a vector are 1,600 documents at a fifth, more than there are."""
    run, _ = selected(tmp_path, corpus, sample=None)
    assert [name for name in run.built if name.startswith(("sample", "learn", "select"))] == ["select a..b"]


def test_a_new_shard_is_selected_from_by_the_rule_that_is_kept(tmp_path, corpus, sample_corpus):
    run, _ = selected(tmp_path, corpus, weight=1)
    assert [name for name in run.built if name.startswith("select")] == ["select a", "select b"]
    assert selected(tmp_path, corpus, weight=1)[0].built == []
    write_shard(corpus, sample_corpus, "new", range(690, 900))
    again, _ = selected(tmp_path, corpus, weight=1)
    assert not [name for name in again.built if name.startswith(("sample", "learn"))]
    assert [name for name in again.built if name.startswith("measure ")] == ["measure new"]
