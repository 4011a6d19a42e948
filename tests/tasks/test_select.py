"""Selection: the right number from every block, nothing that is excluded, the same wherever it runs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.schemas import MASKS
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks import select
from fineweb_mask.tasks.selection.blocks import Group
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import select_jobs
from tests.tasks.number_shards import DIMENSIONS, numbers
from tests.tasks.stage_files import newest


def settings(**changes):
    return PipelineSelectionSettings(**{"select_ratio": 0.25, "device": "cpu"} | changes)


def run(workspace, shards, given):
    return [select.select(job) for job in select_jobs(workspace, shards, given)]


def masks(workspace, name):
    return pq.read_table(newest(workspace, "masks", name))


@pytest.mark.parametrize(
    ("ratio", "rows", "solver"),
    [(0.1, 37, "random"), (0.5, 3, "mean_field"), (0.001, 20, "top_quality"), (1.0, 12, "d4")],
)
def test_exactly_the_ratio_is_selected(tmp_path, ratio, rows, solver):
    workspace = Workspace(tmp_path)
    [file] = run(workspace, [numbers(workspace, "a", rows)], settings(select_ratio=ratio, solver=solver))
    table = masks(workspace, "a")
    expected = max(1, round(ratio * rows))
    assert table.schema.equals(MASKS)
    assert table["row"].to_pylist() == list(range(rows))
    selected = table["selected"].to_numpy()
    assert selected.sum() == expected
    [block] = file.details["blocks"]
    assert (block["name"], block["documents"], block["selected"]) == ("a", rows, expected)
    assert block["tokens"] == sum(range(10, 10 + rows))
    assert block["tokens_selected"] == int(np.arange(10, 10 + rows)[selected].sum())


def test_small_shards_share_a_block_and_large_ones_are_split(tmp_path):
    workspace = Workspace(tmp_path)
    sizes = {"a": 10, "b": 15, "c": 20, "d": 100, "e": 30, "f": 5, "g": 0}
    shards = [numbers(workspace, name, rows, seed=index) for index, (name, rows) in enumerate(sizes.items())]
    jobs = select_jobs(workspace, shards[::-1], settings(block_size=40))
    assert {job.name: (len(job.shards), job.slices) for job in jobs} == {
        "a..b": (2, 1), "c": (1, 1), "d": (1, 3), "e..g": (3, 1),
    }  # fmt: skip
    files = {file.name: file for file in run(workspace, shards, settings(block_size=40, solver="random"))}
    blocks = {block["name"]: block for file in files.values() for block in file.details["blocks"]}
    documents = {"a..b": 25, "c": 20, "d#0": 33, "d#1": 34, "d#2": 33, "e..g": 35}
    assert {name: block["documents"] for name, block in blocks.items()} == documents
    assert masks(workspace, "d")["block"].to_pylist() == ["d#0"] * 33 + ["d#1"] * 34 + ["d#2"] * 33
    tables = {name: masks(workspace, name) for name in sizes}
    assert {name: table.num_rows for name, table in tables.items()} == sizes
    rows = pa.concat_tables(tables.values()).to_pylist()
    for name, block in blocks.items():
        chosen = sum(row["selected"] for row in rows if row["block"] == name)
        assert chosen == block["selected"] == round(0.25 * block["documents"])
    assert files["a..b"].rows == 25


def test_the_vectors_of_a_block_are_those_of_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("fineweb_mask.tasks.selection.inputs.shard_documents.VECTORS_AT_ONCE", 16)
    workspace = Workspace(tmp_path)
    shards = [numbers(workspace, name, rows, seed=rows, bad=(2,)) for name, rows in (("a", 10), ("b", 30), ("c", 70))]
    jobs = select_jobs(workspace, shards, settings(block_size=40))
    stored = [pq.read_table(workspace.resolve(shard.embeddings))["embedding"] for shard in shards]
    whole = np.concatenate([np.array(one.fill_null([0] * DIMENSIONS).to_pylist()) for one in stored])
    starts = [0, 40]  # of the groups, in all rows
    blocks = [(start, block) for start, job in zip(starts, jobs, strict=True) for block in Group(job).blocks()]
    rows = np.concatenate([start + block.rows for start, block in blocks])
    assert rows.tolist() == sorted({*range(110)} - {2, 12, 42})
    for start, block in blocks:
        assert block.vectors.dtype == np.float16
        assert np.array_equal(block.vectors, whole[start + block.rows].astype(np.float16))


def test_what_is_excluded_is_in_no_block(tmp_path):
    workspace = Workspace(tmp_path)
    first = numbers(workspace, "a", 30, duplicates=(2, 3, 9), bad=(3, 4))
    shards = [first, numbers(workspace, "b", 20, seed=1, bad=(0,))]
    [file] = run(workspace, shards, settings(solver="top_quality", select_ratio=0.2))
    assert file.details["excluded"] == {"duplicate": 3, "bad_vector": 2}
    none = [numbers(workspace, "none", 3, duplicates=(0, 1), bad=(2,)), numbers(workspace, "z", 0)]
    for one in none:
        [empty] = run(workspace, [one], settings())
        assert (empty.rows, empty.details["blocks"]) == (one.documents.rows, [])
        assert masks(workspace, one.documents.name)["selected"].to_pylist() == [False] * one.documents.rows
    [block] = file.details["blocks"]
    assert (block["documents"], block["selected"]) == (45, 9)
    for name, out in {"a": {2, 3, 4, 9}, "b": {0}}.items():
        for mask in masks(workspace, name).to_pylist():
            if mask["row"] in out:
                assert (mask["selected"], mask["inclusion"], mask["block"]) == (False, None, None)
            else:
                assert mask["block"] == "a..b"
                assert np.isfinite(mask["inclusion"])


def test_a_moved_workspace_is_current_as_it_is_and_its_masks_are_made_with_the_same_bytes(built, copied):
    assert all(file.cached for file in copied.before_report)
    assert [file.fingerprint for file in copied.before_report] == [file.fingerprint for file in built.before_report]
    assert [job.key for job in copied.select_jobs] == [job.key for job in built.select_jobs]
    for file in copied.masks[1:]:  # a group is made again with all of its masks
        copied.workspace.resolve(file).unlink()
    assert not any(select.select(job).cached for job in copied.select_jobs)
    for file in built.masks:
        assert copied.workspace.resolve(file).read_bytes() == built.workspace.resolve(file).read_bytes()


@pytest.mark.parametrize("solver", ["random", "mean_field"])
def test_a_block_does_not_depend_on_other_groups(tmp_path, solver):
    given = settings(solver=solver, block_size=30)
    lakes = [Workspace(tmp_path / name) for name in ("alone", "together")]
    run(lakes[0], [numbers(lakes[0], "b", 30)], given)
    run(lakes[1], [numbers(lakes[1], name, 30) for name in "abc"], given)
    alone, together = (newest(workspace, "masks", "b").read_bytes() for workspace in lakes)
    assert alone == together
    if solver == "random":  # equal numbers, but a seed of its own
        assert masks(lakes[1], "a")["selected"] != masks(lakes[1], "b")["selected"]
        run(lakes[1], [numbers(lakes[1], "b", 30)], settings(solver=solver, block_size=30, seed=1))
        assert newest(lakes[1], "masks", "b").read_bytes() != alone


def test_the_key_follows_what_the_selection_reads(tmp_path):
    workspace = Workspace(tmp_path)
    shard = numbers(workspace, "a", 20)

    def key(shard=shard, **changes):
        [job] = select_jobs(workspace, [shard], settings(**changes))
        return job.key.fingerprint

    assert key() == key(device="auto") == key(block_size=20)
    others = [
        shard.model_copy(update={name: getattr(shard, name).model_copy(update={"fingerprint": "other"})})
        for name in ("scores", "embeddings", "duplicates")
    ]
    assert len({key(), key(lamb=0.2), key(seed=3), key(block_size=10), key(metrics="disf"), *map(key, others)}) == 8
