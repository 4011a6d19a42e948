"""Selection of groups with shares of the corpus: they are kept, a killed run goes on, nothing is done twice."""

import shutil

import pytest

from fineweb_mask.flows.pipeline.fit import PretrainedModels
from fineweb_mask.flows.pipeline.run import PerShard
from fineweb_mask.flows.pipeline.selection import Prepared, select
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.workspace.records.counts import add_groups
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.pipeline.run_here import RunHere, recipe_of
from tests.tasks.number_shards import numbers

SIZES = {"a": 300, "b": 90, "c": 500, "d": 260, "empty": 0}


def run_of(workspace, selection, **options):
    """A run in a workspace whose shards are prepared."""
    settings = recipe_of(workspace.root, "corpus").model_copy(update={"selection": selection})
    models = PretrainedModels(scorers={}, encoder=None, sidecars={})
    return RunHere(settings, shards=[], models=models, **options)


def selected(workspace, changes, **options):
    """Select from two groups of unequal size; return the run, and how many documents each gave."""
    groups = {"column": "dump", "shares": {"x": 0.5, "y": 0.5}} | changes
    settings = PipelineSelectionSettings(select_ratio=0.2, device="cpu", block_size=400, groups=groups)
    shards = [
        numbers(workspace, name, rows, seed=seed, dump=("x", "x", "x", "y"))
        for seed, (name, rows) in enumerate(SIZES.items())
    ]
    run = run_of(workspace, settings, **options)
    selection = select(run, Prepared(shards, None, PerShard()))
    blocks = [block for file in selection.groups for block in file.details["blocks"]]
    return run, {group["group"]: group["selected"] for group in add_groups(blocks)}


def test_a_run_selects_the_shares_of_the_corpus_and_is_cached(tmp_path):
    run, found = selected(Workspace(tmp_path), {})
    assert found == {"x": pytest.approx(115, abs=4), "y": pytest.approx(115, abs=4)}
    assert [name for name in run.built if "shares" in name] == ["group_shares group-shares"]
    again, same = selected(Workspace(tmp_path), {})
    assert (again.built, same) == ([], found)
    shutil.rmtree(tmp_path / "group_shares")  # not needed once all is selected
    assert selected(Workspace(tmp_path), {})[0].built == []


def test_with_the_corpus_s_own_shares_nothing_is_counted(tmp_path):
    run, found = selected(Workspace(tmp_path), {"shares": "proportional"})
    assert {name.split()[0] for name in run.built} == {"select"}
    assert found == {"x": pytest.approx(0.2 * 863, abs=4), "y": pytest.approx(0.2 * 287, abs=4)}
