"""Groups of shards: what is entered of their blocks is written, and they are neighbours."""

from itertools import chain

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.schemas import MASKS
from fineweb_mask.models.selection.block import Selection
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.blocks import Group, chosen_of, grouped
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import select_jobs
from tests.tasks.number_shards import numbers
from tests.tasks.stage_files import newest


def test_what_is_entered_is_written_row_by_row_and_the_rest_is_in_no_block(tmp_path):
    workspace = Workspace(tmp_path)
    shards = [numbers(workspace, name, 3, duplicates=(0,)) for name in ("a", "b")]
    [job] = select_jobs(workspace, shards, PipelineSelectionSettings(device="cpu"))
    group = Group(job)
    [block] = group.blocks()
    assert block.rows.tolist() == [1, 2, 4, 5]
    inclusion = np.linspace(0, 0.75, 4, dtype=np.float32)
    group.enter(chosen_of(block, Selection(np.array([0, 3]), inclusion, 1.0, {}, None, None, 0.5), budget=2))
    group.write()
    for name, (first, second) in {"a": ((True, 0.0), (False, 0.25)), "b": ((False, 0.5), (True, 0.75))}.items():
        table = pq.read_table(newest(workspace, "masks", name))
        assert table.schema.equals(MASKS)
        assert table["selected"].to_pylist() == [False, first[0], second[0]]
        assert table["inclusion"].to_pylist() == [None, first[1], second[1]]
        assert table["block"].to_pylist() == [None, "a..b", "a..b"]


def shards(sizes: list[int]) -> list[ShardFiles]:
    names = [f"{index:03}" for index in range(len(sizes))]
    return [
        ShardFiles(documents=StageFile(stage="ingest", name=name, path=name, rows=rows, bytes=1, fingerprint=name))
        for name, rows in zip(names, sizes, strict=True)
    ]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_every_shard_is_in_one_group_of_neighbours_no_larger_than_a_block_whatever_the_order(sizes):
    groups = grouped(shards(sizes), 100)
    assert list(chain.from_iterable(groups)) == shards(sizes)
    assert groups == grouped(shards(sizes)[::-1], 100)
    assert len({(group[0].name, group[-1].name) for group in groups}) == len(groups)
    for group in groups:
        rows = [shard.rows for shard in group]
        assert sum(rows) <= 100 or np.count_nonzero(rows) == 1  # a larger shard is alone
    few = grouped(shards(sizes), 100, 3)
    assert list(chain.from_iterable(few)) == shards(sizes)
    assert max(map(len, few)) <= 3
