"""Blocks of documents that are alike, as jobs: whole, cached, resumable; new shards change their own cells alone."""

import shutil

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.pipeline.run import PerShard
from fineweb_mask.flows.pipeline.selection import Prepared, select
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.pipeline.test_selection import run_of
from tests.tasks.number_shards import numbers

SIZES = {"a": 100, "b": 30, "c": 180, "d": 90, "empty": 0}
CANDIDATES = 400 - 3


class Identities:
    """The models of a corpus whose vectors and scores are there."""

    identities = ("m",)


def corpus(workspace):
    left_out = {"a": {"duplicates": (1, 2)}, "c": {"bad": (5,)}}
    return [
        numbers(workspace, name, rows, seed=seed, **left_out.get(name, {}))
        for seed, (name, rows) in enumerate(SIZES.items())
    ]


def settings_of(**changes):
    quick = {"metrics": "pairwise", "near_duplicates": None}
    return PipelineSelectionSettings(**{"select_ratio": 0.2, "device": "cpu", "block_size": 100} | quick | changes)


def selected(workspace, shards, settings, **options):
    """Select from some shards; return what was built, the selection, and the masks of each shard."""
    run = run_of(workspace, settings, **options)
    selection = select(run, Prepared(shards, Identities, PerShard()))
    masks = {shard.name: pq.read_table(workspace.resolve(shard.masks)) for shard in selection.shards}
    return run.built, selection, masks


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A workspace with the usual selection, its shards, and what `selected` returned of it."""
    workspace = Workspace(tmp_path_factory.mktemp("cells") / "w")
    shards = corpus(workspace)
    return workspace, shards, selected(workspace, shards, settings_of())


@pytest.fixture
def copied(base, tmp_path):
    """A copy of that workspace, and its shards."""
    return Workspace(shutil.copytree(base[0].root, tmp_path / "copy")), base[1]


def kinds(built):
    return list(dict.fromkeys(name.split()[0] for name in built))


STEPS = ["sample", "fit_centres", "route", "plan_selection", "divide_shard", "select_cell", "select"]


@pytest.mark.parametrize(("metrics", "by"), [("facility", "tokens"), ({"pairwise": 1, "disf": 1}, "documents")])
def test_every_candidate_is_in_a_block_no_larger_than_asked_and_the_budget_is_used(tmp_path, by, metrics):
    workspace = Workspace(tmp_path)
    shards = corpus(workspace)
    built, selection, masks = selected(workspace, shards, settings_of(metrics=metrics, budget_by=by))
    assert kinds(built) == STEPS
    names = set()
    for shard in shards:
        candidate, table = read_columns(workspace, shard).candidate, masks[shard.name]
        np.testing.assert_array_equal(table["block"].is_valid().to_numpy(), candidate)
        assert not table["selected"].to_numpy()[~candidate].any()
        names |= set(table["block"].drop_null().to_pylist())
    blocks = {block["name"]: block for block in selection.blocks}
    assert blocks.keys() == names
    assert sum(block["documents"] for block in selection.blocks) == CANDIDATES
    assert max(block["documents"] for block in selection.blocks) <= 100
    taken = sum(int(table["selected"].to_numpy().sum()) for table in masks.values())
    assert taken == sum(block["selected"] for block in selection.blocks)
    if by == "documents":
        assert taken == round(0.2 * CANDIDATES)
    else:
        used, held = (sum(block[name] for block in selection.blocks) for name in ("tokens_selected", "tokens"))
        assert 0.17 * held < used <= 0.2 * held + len(blocks)
    for block in selection.blocks:
        assert block["random_objective"] < block["objective"] <= block["upper_bound"]
        assert 0 <= block["gap"] < 0.5


def test_a_second_run_does_nothing_also_where_what_leads_to_the_masks_is_gone(base, copied):
    assert selected(*copied, settings_of())[0] == []
    for folder in ("samples", "divided", "chosen"):
        shutil.rmtree(copied[0].root / folder)
    built, _, again = selected(*copied, settings_of())
    assert built == []
    assert again == base[2][2]


def test_another_lamb_has_the_same_cells_and_another_plan(copied):
    built, _, _ = selected(*copied, settings_of(lamb=0.8))
    assert kinds(built) == ["plan_selection", "select_cell", "select"]


@pytest.mark.long
def test_the_order_of_work_does_not_matter_and_a_killed_run_goes_on(base, tmp_path):
    workspace = Workspace(tmp_path)
    shards = corpus(workspace)
    built, _, masks = base[2]
    for seed in range(3):
        with pytest.raises(KeyboardInterrupt):
            selected(workspace, shards, settings_of(), seed=seed, stop_after=4)
    rest, _, again = selected(workspace, shards, settings_of(), seed=7)
    assert len(rest) == len(built) - 12
    assert again == masks


def test_new_documents_change_their_own_cells_alone(base, copied):
    workspace, shards = copied
    _, before, masks = base[2]
    new = numbers(workspace, "new", 1, seed=9)
    built, after, found = selected(workspace, [*shards, new], settings_of())
    assert kinds(built) == ["route", "divide_shard", "select_cell", "select"]
    [solved] = [name.removeprefix("select_cell ") for name in built if name.startswith("select_cell")]
    [block] = found["new"]["block"].to_pylist()
    assert block == solved
    for shard in shards:
        tables = (masks[shard.name], found[shard.name])
        others, same = (table.filter(pc.not_equal(table["block"], block)) for table in tables)
        assert same == others
    assert len(after.blocks) == len(before.blocks)


@pytest.mark.long
def test_a_corpus_that_has_grown_keeps_a_number_of_documents_and_is_learned_anew_if_asked(copied):
    workspace, shards = copied
    grown = [*shards, numbers(workspace, "new", 250, seed=9)]
    built, _, _ = selected(workspace, grown, settings_of(), refit=["fit_centres", "plan_selection"])
    assert kinds(built) == STEPS
    assert [name for name in built if name.startswith("route")] == [f"route {name}" for name in (*SIZES, "new")]
    for some in (shards, grown):
        _, selection, _ = selected(workspace, some, settings_of(budget=57))
        assert sum(block["selected"] for block in selection.blocks) == 57


def test_large_corpora_are_selected_from_some_shards_at_a_time(copied, monkeypatch):
    monkeypatch.setattr("fineweb_mask.flows.pipeline.selection.GROUP_SHARDS", 2)
    built, selection, masks = selected(*copied, settings_of())
    assert [name for name in built if name.startswith("select ")] == ["select a..b", "select c..d", "select empty"]
    of_first, of_second = ({*masks[one]["block"].drop_null().to_pylist()} for one in ("a", "c"))
    assert not of_first & of_second
    assert sum(block["documents"] for block in selection.blocks) == CANDIDATES


def test_documents_that_cannot_be_told_apart_are_selected_from_in_parts(tmp_path):
    workspace = Workspace(tmp_path)
    shards = [numbers(workspace, name, 1, seed=3) for name in "abcdefghij"]
    _, selection, _ = selected(workspace, shards, settings_of(block_size=3, select_ratio=0.5))
    assert [block["name"] for block in selection.blocks] == [f"cell-0#{part}" for part in range(4)]
    assert sum(block["selected"] for block in selection.blocks) == 5


def test_blocks_by_order_where_they_are_asked_for_or_documents_are_few(copied):
    for changes in ({"blocks": "order"}, {"solver": "random"}, {"block_size": 400}):
        assert kinds(selected(*copied, settings_of(**changes))[0]) == ["select"]


def test_a_corpus_without_a_document_to_select_from_is_told_in_a_line(tmp_path):
    workspace = Workspace(tmp_path)
    shards = [numbers(workspace, name, 60, bad=tuple(range(60))) for name in "ab"]
    with pytest.raises(DataError, match=r"no document of the corpus's sample may be selected, .*: check"):
        selected(workspace, shards, settings_of())
