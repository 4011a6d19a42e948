"""Groups of shards: every shard once, blocks of bounded size."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.groups import group_name, grouped
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles

SETTINGS = PipelineSelectionSettings(block_size=100)


def shard(name, rows):
    file = StageFile(stage="ingest", name=name, path=f"documents/{name}.parquet", rows=rows, bytes=1, fingerprint=name)
    return ShardFiles(documents=file)


def shards(sizes):
    return [shard(f"{index:03}", rows) for index, rows in enumerate(sizes)]


def names(groups):
    return [[shard.name for shard in group] for group in groups]


def rows(group):
    return sum(shard.rows for shard in group)


SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=60)


@given(SIZES)
def test_every_shard_is_in_one_group_whatever_the_order(sizes):
    groups = grouped(shards(sizes), SETTINGS)
    assert list(chain.from_iterable(names(groups))) == [shard.name for shard in shards(sizes)]  # neighbours
    assert names(groups) == names(grouped(shards(sizes)[::-1], SETTINGS))
    assert len({group_name(group) for group in groups}) == len(groups)


@given(SIZES)
def test_a_group_is_no_larger_than_a_block_or_one_shard(sizes):
    groups = grouped(shards(sizes), SETTINGS)
    assert all(rows(group) <= 100 or len([shard for shard in group if shard.rows]) == 1 for group in groups)
