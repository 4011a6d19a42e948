"""Groups: each has its share in every block, by every selector, and is selected from by itself."""

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.select import select
from fineweb_mask.tasks.selection.blocks import Block, select_block
from fineweb_mask.tasks.selection.groups import SharesJob, divide_budget, select_groups
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import select_jobs
from tests.tasks.number_shards import numbers
from tests.tasks.stage_files import newest

READS_MORE = {name for name, entry in SELECTORS.items() if entry.reads & {"scores", "targets", "text"}}


def settings_of(shares: Any = "equal", **changes: Any) -> PipelineSelectionSettings:
    groups = {"column": "dump", "shares": shares}
    return PipelineSelectionSettings.model_validate(
        {"select_ratio": 0.2, "device": "cpu", "near_duplicates": None, "groups": groups} | changes
    )


def divided(workspace: Workspace, shards: list[ShardFiles], settings: PipelineSelectionSettings) -> StageFile:
    return divide_budget(SharesJob(root=str(workspace.root), shards=shards, settings=settings))


def drawn(n: int = 90, groups: tuple[str, ...] = ("x", "x", "y")) -> Block:
    random = np.random.default_rng(0)
    vectors, quality = random.normal(size=(n, 8)).astype(np.float32), random.normal(size=n).astype(np.float32)
    names = np.array([groups[row % len(groups)] for row in range(n)], dtype=object)
    return Block("a", np.arange(n), vectors, quality, random.integers(5, 60, n), groups=names)


@pytest.mark.parametrize("by", ["documents", "tokens"])
def test_every_shard_counts_and_blocks_give_what_all_together_are_to_have(tmp_path, by):
    workspace = Workspace(tmp_path)
    settings = settings_of(budget_by=by, select_ratio=0.6, block_size=120, metrics="pairwise")
    dumps = {"a": ("x", "x", "x", "y"), "b": ("x", "y"), "c": ("x",)}
    shards = [
        numbers(workspace, name, 120, seed=seed, dump=dump, duplicates=(0,), bad=(1,))
        for seed, (name, dump) in enumerate(dumps.items())
    ]
    file = divided(workspace, shards, settings)
    jobs = [job.model_copy(update={"shares": file}) for job in select_jobs(workspace, shards, settings)]
    blocks = [block for job in jobs for block in select(job).details["blocks"]]
    assert [block["name"] for block in blocks] == ["a dump=x", "a dump=y", "b dump=x", "b dump=y", "c dump=x"]
    spent, taken = ("selected" if by == "documents" else "tokens_selected"), {"x": 0, "y": 0}
    for block in blocks:
        taken[block["group"]] += block[spent]
        assert block["objective"] <= block["upper_bound"] + 1e-6
    everything = sum(block[by] for block in blocks)
    of_y = sum(block[by] for block in blocks if block["group"] == "y")
    assert 0.3 * everything > of_y  # so that all of it is taken, and the rest is the other's
    assert taken["y"] == of_y
    assert taken["x"] == pytest.approx(0.6 * everything - of_y, abs=3 if by == "documents" else 250)
    assert sum(block["budget"] for block in blocks) == pytest.approx(0.6 * everything)
    masks = pq.read_table(newest(workspace, "masks", "a"))
    assert masks["block"].to_pylist()[:4] == [None, None, "a dump=x", "a dump=y"]


@pytest.mark.parametrize("by", ["documents", "tokens"])
@pytest.mark.parametrize("solver", sorted(set(SELECTORS) - READS_MORE))
def test_every_selector_gives_every_group_its_share(solver, by):
    learning = {"n_epochs": 2, "partial": 1.0}
    block = drawn(94, groups=("x", "x", "y", "x", "z"))
    changes = {"solver": solver, "budget_by": by, "metrics": "facility", "policy_gradient": learning}
    settings = settings_of({"x": 0.6, "y": 0.4}, **changes)
    assert block.groups is not None
    total = 0.2 * (94 if by == "documents" else int(block.tokens.sum()))
    found = {one.group: one for one in select_groups(settings, block, None)}
    assert found["z"].selection is None
    for name, share in {"x": 0.6, "y": 0.4}.items():
        one = found[name]
        assert one.selection is not None
        assert set(block.groups[one.block.rows]) == {name}
        amount = one.block.tokens if by == "tokens" else np.ones(len(one.block.rows))
        spent = int(amount[one.selection.indices].sum())
        assert one.budget == pytest.approx(share * total)
        assert spent == pytest.approx(share * total, abs=1 if by == "documents" else 60)


def test_small_groups_share_what_rounding_leaves():
    """Forty groups of three documents, of which a fifth is selected: not one of each."""
    block = drawn(120, groups=tuple(f"{number:02}" for number in range(40)))
    settings = settings_of("proportional", solver="top_quality", normalize="none")
    taken = [0 if one.selection is None else len(one.selection.indices) for one in select_groups(settings, block, None)]
    assert (len(taken), sum(taken), set(taken)) == (40, 24, {0, 1})


def test_what_a_group_of_near_duplicates_cannot_fill_goes_to_the_next():
    block = drawn(60, groups=("x", "y"))
    alike = block._replace(vectors=np.where(np.arange(60)[:, None] % 2 == 0, block.vectors[:1], block.vectors))
    found = select_groups(settings_of("proportional", select_ratio=0.3, near_duplicates=0.9), alike, None)
    assert [len(one.selection.indices) for one in found if one.selection is not None] == [1, 17]


def test_a_group_is_selected_from_as_a_block_of_its_documents_alone():
    block, settings = drawn(), settings_of("proportional")
    assert block.groups is not None
    for one in select_groups(settings, block, None):
        own = block.take((block.groups == one.group).nonzero()[0], f"a dump={one.group}")
        alone = select_block(settings.model_copy(update={"groups": None}), own)
        assert one.selection is not None
        assert one.selection.indices.tolist() == alone.indices.tolist()
        assert one.selection.upper_bound == alone.upper_bound


def test_shares_and_what_they_depend_on(tmp_path):
    workspace = Workspace(tmp_path)
    shards = [numbers(workspace, name, 40, seed=seed, dump=("x", "y", "y")) for seed, name in enumerate("ab")]
    root, settings = str(workspace.root), settings_of()

    def key(shards: list[ShardFiles], **changes: Any) -> str:
        return SharesJob(root=root, shards=shards, settings=settings_of(**changes)).key.fingerprint

    assert key(shards, lamb=0.9) == key(shards)
    assert len({key(shards), key(shards[:1]), key(shards, budget_by="tokens"), key(shards, select_ratio=0.5)}) == 4
    file = divided(workspace, shards, settings)
    found = file.details["shares"]
    assert found["x"][1] * 28 == pytest.approx(8)
    assert found["y"][1] * 52 == pytest.approx(8)
    others = settings, settings_of("proportional"), settings.model_copy(update={"groups": None})
    jobs = [job for given in others for job in select_jobs(workspace, shards, given)]
    assert len({job.key for job in [*jobs, jobs[0].model_copy(update={"shares": file})]}) == 4
