"""Groups of shards: every shard once, blocks of bounded size, and full groups that stay as shards are added."""

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.groups import (
    MIXED_BLOCKS,
    group_name,
    grouped,
    remember_groups,
    remembered_groups,
)
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace


def shard(name, rows):
    file = StageFile(stage="ingest", name=name, path=f"documents/{name}.parquet", rows=rows, bytes=1, fingerprint=name)
    return ShardFiles(documents=file)


def shards(sizes):
    return [shard(f"{index:03}", rows) for index, rows in enumerate(sizes)]


def settings(block_size=100, blocks="mixed", seed=0):
    return PipelineSelectionSettings(block_size=block_size, blocks=blocks, seed=seed)


def names(groups):
    return [[shard.name for shard in group] for group in groups]


def rows(group):
    return sum(shard.rows for shard in group)


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=60)


@given(SIZES, st.sampled_from(["mixed", "by_shard"]), st.integers(0, 5))
def test_every_shard_is_in_one_group_whatever_the_order(sizes, blocks, seed):
    chosen = settings(blocks=blocks, seed=seed)
    groups = grouped(shards(sizes), chosen)
    assert sorted(chain.from_iterable(names(groups))) == [shard.name for shard in shards(sizes)]
    assert names(groups) == names(grouped(shards(sizes)[::-1], chosen))
    assert all(group == sorted(group) for group in names(groups))
    assert len({group_name(group) for group in groups}) == len(groups)


@given(SIZES)
def test_a_group_by_shard_is_no_larger_than_a_block_or_one_shard(sizes):
    groups = grouped(shards(sizes), settings(blocks="by_shard"))
    assert all(rows(group) <= 100 or len([shard for shard in group if shard.rows]) == 1 for group in groups)
    assert list(chain.from_iterable(names(groups))) == [shard.name for shard in shards(sizes)]  # neighbours


@given(SIZES)
def test_a_mixed_group_is_no_larger_than_its_most_blocks_and_one_shard(sizes):
    groups = grouped(shards(sizes), settings())
    assert all(rows(group) <= MIXED_BLOCKS * 100 + max(sizes) for group in groups)
    assert len(groups) <= max(1, -(-sum(sizes) // (MIXED_BLOCKS * 100)))


def test_a_corpus_of_few_blocks_is_one_group():
    assert names(grouped(shards([150] * 10), settings())) == [[f"{index:03}" for index in range(10)]]


def test_mixed_groups_are_of_like_size_and_follow_no_order_of_names():
    groups = grouped(shards([100] * 64), settings())
    assert [rows(group) for group in groups] == [1600] * 4
    neighbours = [int(later) - int(earlier) for group in names(groups) for earlier, later in pairwise(group)]
    assert sum(step > 1 for step in neighbours) > 30
    assert names(groups) != names(grouped(shards([100] * 64), settings(seed=1)))


def test_new_shards_leave_full_groups_as_they_are(tmp_path):
    workspace, chosen = Workspace(tmp_path), settings()
    before = grouped(shards([100] * 40), chosen)
    remember_groups(workspace, chosen, before)
    known = remembered_groups(workspace, chosen)
    assert known == [set(group) for group in names(before)]
    added = [shard(f"{index:03}+", 100) for index in range(0, 40, 3)]  # between the others
    after = grouped(shards([100] * 40) + added, chosen, known)
    assert [group for group in names(after) if group in names(before)] == names(before)
    [new] = [group for group in names(after) if group not in names(before)]
    assert new == [shard.name for shard in added]


def test_a_group_smaller_than_a_block_takes_new_shards():
    known = [{"000", "001"}]
    assert names(grouped(shards([40, 40, 40]), settings(), known)) == [["000", "001", "002"]]
    assert names(grouped(shards([60, 40, 40]), settings(), known)) == [["000", "001"], ["002"]]


def test_a_group_goes_on_without_a_shard_that_is_gone():
    left = [shard for shard in shards([100] * 4) if shard.name != "001"]
    assert names(grouped(left, settings(), [{"000", "001", "002"}])) == [["000", "002"], ["003"]]


@pytest.mark.parametrize("other", [{"seed": 1}, {"block_size": 50}])
def test_groups_of_other_settings_are_not_remembered(tmp_path, other):
    workspace = Workspace(tmp_path)
    assert remembered_groups(workspace, settings()) == []
    remember_groups(workspace, settings(), grouped(shards([100] * 4), settings()))
    assert remembered_groups(workspace, settings(**other)) == []
    workspace.groups.write_text("{")
    assert remembered_groups(workspace, settings()) == []


def test_what_is_remembered_is_written_once(tmp_path):
    workspace = Workspace(tmp_path)
    groups = grouped(shards([100] * 4), settings())
    remember_groups(workspace, settings(blocks="by_shard"), groups)
    assert not workspace.groups.exists()
    remember_groups(workspace, settings(), groups)
    first = workspace.groups.stat().st_mtime_ns
    remember_groups(workspace, settings(), groups)
    assert workspace.groups.stat().st_mtime_ns == first
