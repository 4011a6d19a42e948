"""Masks: what is entered of a group's blocks is written, with repeats where a document may have some."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.schemas import MASKS, masks_schema
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.blocks import Group, Masks, group_name, grouped, merged
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import select_jobs
from tests.tasks.number_shards import numbers
from tests.tasks.stage_files import newest


def written(folder: Path, max_repeats: int, repeats: list[int] | None) -> dict[str, pa.Table]:
    """Enter four rows of two shards, of which two are selected, and return the masks that are written."""
    workspace = Workspace(folder)
    shards = [numbers(workspace, name, 3, duplicates=(0,)) for name in ("a", "b")]
    settings = PipelineSelectionSettings.model_validate(
        {"groups": {"column": "dump", "max_repeats": max_repeats}, "device": "cpu"}
    )
    [job] = select_jobs(workspace, shards, settings)
    masks = Masks(Group.read(job))
    rows, selected = np.array([1, 2, 4, 5]), np.array([True, False, False, True])
    times = None if repeats is None else np.array(repeats)
    masks.enter_rows(rows, selected, np.linspace(0, 1, 4, dtype=np.float32), "all", times)
    masks.write([])
    return {name: pq.read_table(newest(workspace, "masks", name)) for name in ("a", "b")}


@pytest.mark.parametrize(
    ("repeats", "expected"), [([7, 0, 0, 70_000], [[0, 7, 0], [0, 0, 70_000]]), (None, [[0, 1, 0], [0, 0, 1]])]
)
def test_repeats_are_written_where_a_document_may_have_some(tmp_path: Path, repeats: Any, expected: Any) -> None:
    found = written(tmp_path, 100_000, repeats)
    for table, times in zip(found.values(), expected, strict=True):
        assert table.schema.equals(masks_schema(with_repeats=True))
        assert table["repeats"].to_pylist() == times
        assert table["selected"].to_pylist() == [time > 0 for time in times]


def test_masks_without_repeats_have_no_column_of_them(tmp_path: Path) -> None:
    assert all(table.schema.equals(MASKS) for table in written(tmp_path, 1, None).values())


def test_groups_of_a_corpus_have_one_budget_and_the_counts_of_all_parts() -> None:
    def part(*groups: dict[str, Any], by_rule: bool = True) -> dict[str, Any]:
        counts = dict.fromkeys(("documents", "selected", "tokens", "tokens_selected"), 1)
        return {"name": "part", "groups": list(groups), **counts} | ({"by_rule": True} if by_rule else {})

    german = {"group": "de", "documents": 4, "budget": 20, "selected": 3, "repeated": 9}
    english = {"group": "en", "documents": 30, "budget": 15, "selected": 7, "repeated": 7}
    other = part(german, by_rule=False)
    whole, rest = merged([part(german), part(english, german), part(), other])
    assert whole["groups"] == [english, german | {"documents": 8, "selected": 6, "repeated": 18}]
    assert rest == other
    assert "groups" not in merged([part(), part()])[0]


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
