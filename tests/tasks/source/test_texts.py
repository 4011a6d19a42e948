"""Documents whose texts stay in the source are as those with texts; a source that changed is told."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from fineweb_mask.models.schemas import documents_schema, without_text
from fineweb_mask.models.settings import IngestSettings, PipelineSettings, SourceSettings
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.source.discovery import SourceError, discover
from fineweb_mask.tasks.source.texts import check_can_be_read_again, documents_of, with_texts
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace import stage_parquet
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import ingest_job


def ingested(workspace: Workspace, path: Path, *, copy: bool = False, **source: Any) -> StageFile:
    given = SourceSettings(path=str(path), **source)
    [shard] = discover(given)
    return ingest(ingest_job(workspace, shard, given, IngestSettings(min_chars=5, copy_text=copy)))


@pytest.fixture
def source(tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., dict[str, Any]]) -> Path:
    return make_parquet(tmp_path / "source" / "a.parquet", [make_document(seed) for seed in range(20)])


def test_all_that_follows_is_the_same_without_a_copy_of_the_texts(
    built: Any, recipe: PipelineSettings, pipeline: Callable[[PipelineSettings], Any], tmp_path: Path
) -> None:
    ingest_settings = recipe.ingest.model_copy(update={"copy_text": False})
    lean = pipeline(recipe.model_copy(update={"workspace": str(tmp_path), "ingest": ingest_settings}))
    _ = (built.report, lean.report)
    for file, copied in zip(lean.documents, built.documents, strict=True):
        assert pq.read_schema(lean.workspace.resolve(file)).names == without_text(documents_schema()).names
        assert file.fingerprint == copied.fingerprint
    of_both = [
        {
            path.relative_to(one.workspace.root).as_posix(): path.read_bytes()
            for folder in ("hashes", "duplicates", "scores", "embeddings", "masks", "dataset", "reports", "fitted")
            for path in tree_files(one.workspace.root / folder)
        }
        for one in (lean, built)
    ]
    assert of_both[0].keys() == of_both[1].keys()
    differ = [name for name, content in of_both[0].items() if of_both[1][name] != content]
    recipes = ["dataset/README.md", "dataset/provenance.json", "reports/manifest.json", "reports/metrics.json"]
    assert sorted(differ) == recipes
    card = [(one.workspace.dataset / "README.md").read_text().splitlines() for one in (lean, built)]
    *differing, seal = [line.strip() for line in card[0] if line not in card[1]]
    assert differing == ["copy_text: false"]
    assert seal.startswith("SHA-256 of `provenance.json`")
    assert not list(tmp_path.rglob("*.partial"))


@hypothesis.settings(max_examples=40, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    of_source=st.integers(1, 70),
    of_workspace=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_and_row_groups_are_those_of_a_copy(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], of_source: int, of_workspace: int, seed: int
) -> None:
    """Short texts are dropped, so that rows of the workspace are not those of the source."""
    folder = tmp_path_factory.mktemp("texts")
    texts = [chr(ord("a") + place % 26) * 2 + "é" * length for place, length in enumerate(lengths)]
    pq.write_table(pa.table({"text": texts, "extra": lengths}), folder / "a.parquet", row_group_size=of_source)
    with (
        mock.patch.object(stage_parquet, "ROW_GROUP_ROWS", of_workspace),
        mock.patch("fineweb_mask.tasks.source.reader.BATCH_ROWS", 7),
    ):
        copied = ingested(copying := Workspace(folder / "copied"), folder / "a.parquet", copy=True)
        lean = ingested(workspace := Workspace(folder / "lean"), folder / "a.parquet")
        expected = pq.read_table(copying.resolve(copied))
        with with_texts(workspace, lean) as path, pq.ParquetFile(path) as file:
            assert file.read().equals(expected)
            groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        with pq.ParquetFile(copying.resolve(copied)) as file:
            assert groups == [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        rows = np.flatnonzero(np.random.default_rng(seed).random(lean.rows) < 0.3)  # sometimes none
        for one, file in ((workspace, lean), (copying, copied)):
            some = documents_of(one, file, rows, ["text", "extra", "absent"])
            assert some.equals(expected.take(pa.array(rows, pa.int64())).select(["text", "extra"]))


@pytest.mark.parametrize("fingerprint", ["mtime", "content"])
def test_a_changed_source_is_told(source: Path, tmp_path: Path, fingerprint: str) -> None:
    workspace = Workspace(tmp_path / "workspace")
    file = ingested(workspace, source, fingerprint=fingerprint)
    status = source.stat()
    table = pq.read_table(source)
    table = table.set_column(0, "text", pa.array([text[::-1] for text in table["text"].to_pylist()]))
    pq.write_table(table, source)
    with (
        pytest.raises(BadShardError, match=r"a.parquet: the file (was )?changed .*run again"),
        with_texts(workspace, file),
    ):
        pass
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    with pytest.raises(BadShardError, match="run again"):
        documents_of(workspace, file, np.array([3]), ["text"])
    source.unlink()
    with pytest.raises(BadShardError, match=r"a\.parquet"), with_texts(workspace, file):
        pass
    assert documents_of(workspace, file, np.array([3]), ["id"])["id"].to_pylist() == ["<urn:uuid:3>"]


def test_a_source_that_lost_rows_is_told(source: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    file = ingested(workspace, source, fingerprint="content")
    pq.write_table(pq.read_table(source).slice(0, 10), source)
    with pytest.raises(BadShardError, match="run again"), with_texts(workspace, file):
        pass


def test_the_same_content_at_another_time_is_no_change_where_content_counts(source: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    file = ingested(workspace, source, fingerprint="content")
    os.utime(source, ns=(0, 0))
    assert ingested(workspace, source, fingerprint="content").cached
    assert "Page 3:" in documents_of(workspace, file, np.array([3]), ["text"])["text"][0].as_py()


def test_where_the_source_was_moved_only_documents_are_written_again(source: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    before = ingested(workspace, source)
    moved = source.rename(tmp_path / source.name)
    after = ingested(workspace, moved)
    assert not after.cached
    assert before.fingerprint == after.fingerprint
    assert documents_of(workspace, after, np.array([0]), ["text"]).num_rows == 1


def test_nothing_is_left_of_a_job_that_failed(source: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    file = ingested(workspace, source)

    def interrupt(path: Path) -> None:
        assert path.is_file()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), with_texts(workspace, file) as path:
        interrupt(path)
    assert not tree_files(workspace.cache)


def test_json_lines_cannot_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}\n')
    with pytest.raises(SourceError, match=r"ingest.copy_text: a\.jsonl is not a Parquet file"):
        check_can_be_read_again(discover(SourceSettings(path=str(tmp_path))))
