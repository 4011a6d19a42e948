"""Partitions: whole shards in order, large enough, and not too many."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.tasks.dataset.partitioning import MOST_PARTITIONS, divide
from fineweb_mask.tasks.storage.parquet import DamagedFileError


@given(st.lists(st.integers(0, 1000), max_size=300), st.integers(1, 500))
def test_every_shard_is_in_one_partition_and_all_but_the_last_are_full(sizes: list[int], target: int) -> None:
    found = divide(sizes, target)
    assert [shard for one in found for shard in one] == list(range(len(sizes)))
    assert all(one.stop == other.start for one, other in pairwise(found))
    assert all(sum(sizes[one.start : one.stop]) >= target for one in found[:-1])
    assert len(found) <= MOST_PARTITIONS + 1


def test_a_large_corpus_has_hundreds_of_partitions() -> None:
    found = divide([2 * 2**30] * 25_000, 4 * 2**30)
    assert 256 <= len(found) <= 512
    assert len({len(one) for one in found[:-1]}) == 1


def test_a_shard_at_the_end_moves_no_boundary() -> None:
    sizes = [7, 11, 13, 5, 9, 20, 1, 6]
    assert divide(sizes, 20)[:-1] == divide([*sizes, 8], 20)[: len(divide(sizes, 20)) - 1]


def test_jobs_hold_only_their_own_shards(make_corpus: Callable[..., Any], six_shards: Any, tmp_path: Any) -> None:
    found = make_corpus(tmp_path, six_shards, partition_size=1).partitioning.jobs()
    assert [[shard.name for shard in job.shards] for job in found] == [[f"{number:03d}"] for number in range(6)]
    assert len({job.key.fingerprint for job in found}) == 6


def test_a_partition_without_a_selected_shard_is_left_out(
    make_corpus: Callable[..., Any], six_shards: Any, tmp_path: Any
) -> None:
    making = make_corpus(tmp_path, six_shards, partition_size=1)
    found = making._replace(shards=making.shards[1:]).partitioning.jobs()
    assert [(job.number, job.partitions) for job in found] == [(number, 6) for number in range(1, 6)]


def test_documents_that_are_gone_are_named(make_corpus: Callable[..., Any], six_shards: Any, tmp_path: Any) -> None:
    making = make_corpus(tmp_path, six_shards)
    making.workspace.resolve(making.shards[2].documents).unlink()
    with pytest.raises(DamagedFileError, match=r"/documents/002\.\w+\.parquet is damaged: it is missing, or"):
        making.partitioning.jobs()


def test_the_version_follows_what_is_in_the_files_and_not_where_or_how_fast(
    make_corpus: Callable[..., Any], six_shards: Any, tmp_path: Any
) -> None:
    making = make_corpus(tmp_path, six_shards)

    def version(**changes: Any) -> str:
        return str(making.with_settings(**changes).partitioning.version)

    same = {version(), version(title="x"), version(memory_limit="1GB"), version(output="/x")}
    assert len(same) == 1
    others = {version(layout="flat"), version(partition_size=1)}
    assert len(others | same) == 3
    assert making._replace(shards=making.shards[:-1]).partitioning.version not in same
