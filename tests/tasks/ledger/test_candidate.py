"""Draw a sample of files of any format, in which every document has the same chance; refuse what cannot be scored."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings, SidecarScorerSettings
from fineweb_mask.tasks.ledger import candidate as module
from fineweb_mask.tasks.ledger.candidate import SOURCE, draw, find_candidate
from fineweb_mask.tasks.source.discovery import discover


def write(path, first, rows):
    found = [{"text": f"page {row}", "id": str(row), "score": row} for row in range(first, first + rows)]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(found), path, row_group_size=50)
    else:
        path.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in found).encode()))


def drawn_ids(folder):
    tables = [pq.read_table(path) for path in sorted((folder / SOURCE).iterdir())]
    return [int(value) for table in tables for value in table["id"].to_pylist()]


def test_every_document_has_the_same_chance_whatever_file_it_is_in(tmp_path):
    (tmp_path / "files").mkdir()
    write(tmp_path / "files" / "a.parquet", 0, 900)
    write(tmp_path / "files" / "b.jsonl.gz", 900, 300)
    source = SourceSettings(path=str(tmp_path / "files"))
    counts = np.zeros(1_200)
    for seed in range(60):
        folder = tmp_path / str(seed)
        found = draw(folder, discover(source), source, 240, seed)
        assert (found.documents, found.rows, found.of_files, found.unread) == (1_200, 240, 2, [])
        assert found.fraction == 0.2
        ids = drawn_ids(folder)
        assert len(set(ids)) == 240
        counts[ids] += 1
    assert counts[:900].mean() == pytest.approx(12, abs=0.5)
    assert counts[900:].mean() == pytest.approx(12, abs=1)
    assert counts.std() == pytest.approx(np.sqrt(60 * 0.2 * 0.8), abs=0.4)


def test_all_is_drawn_of_a_small_candidate_with_its_own_columns(tmp_path):
    write(tmp_path / "a.parquet", 0, 120)
    source = SourceSettings(path=str(tmp_path / "a.parquet"))
    found = draw(tmp_path / "drawn", discover(source), source, 500)
    assert found.fraction == 1
    assert sorted(drawn_ids(tmp_path / "drawn")) == list(range(120))
    assert pq.read_table(tmp_path / "drawn" / SOURCE / "s000.parquet")["score"].to_pylist() == list(range(120))


def test_of_many_files_some_are_drawn_by_size(tmp_path, monkeypatch):
    monkeypatch.setitem(module.MOST_FILES, "parquet", 4)
    (tmp_path / "files").mkdir()
    for number in range(10):
        write(tmp_path / "files" / f"{number}.parquet", 1_000 * number, 100)
    source = SourceSettings(path=str(tmp_path / "files"))
    found = draw(tmp_path / "drawn", discover(source), source, 200)
    assert (len(found.files), found.of_files, found.rows, found.documents) == (4, 10, 200, 1_000)
    assert len({one // 1_000 for one in drawn_ids(tmp_path / "drawn")}) == 4


def test_a_broken_file_is_told_and_the_others_are_read(tmp_path):
    (tmp_path / "files").mkdir()
    write(tmp_path / "files" / "a.parquet", 0, 300)
    (tmp_path / "files" / "b.parquet").write_bytes(b"PAR1 cut off")
    source = SourceSettings(path=str(tmp_path / "files"))
    found = draw(tmp_path / "drawn", discover(source), source, 200)
    assert found.files == ["a.parquet"]
    assert found.unread[0].startswith("b.parquet: ")


@pytest.mark.parametrize("rows", [0, None])
def test_files_without_documents_are_refused(tmp_path, rows):
    if rows is None:
        (tmp_path / "a.parquet").write_bytes(b"")
    else:
        write(tmp_path / "a.parquet", 0, 1)
        pq.write_table(pq.read_table(tmp_path / "a.parquet").slice(0, 0), tmp_path / "a.parquet")
    source = SourceSettings(path=str(tmp_path / "a.parquet"))
    with pytest.raises(DataError, match="FILES: no document can be read of 1 files: "):
        draw(tmp_path / "drawn", discover(source), source, 200)


def test_what_cannot_be_scored_as_the_source_is_refused(tmp_path, recipe):
    write(tmp_path / "a.parquet", 0, 300)
    files = [str(tmp_path / "a.parquet")]
    assert [shard.name for shard in find_candidate([*files, *files], recipe, 200)] == ["a"]
    with pytest.raises(SettingsError, match=r"--sample must be at least 200, .* received 10"):
        find_candidate(files, recipe, 10)
    with pytest.raises(SettingsError, match=r"FILES: '.*gone' does not exist"):
        find_candidate([str(tmp_path / "gone")], recipe, 200)
    pq.write_table(pa.table({"body": ["a page"]}), tmp_path / "b.parquet")
    with pytest.raises(SettingsError, match="no source file has a column 'text', it may be one of 'body'"):
        find_candidate([str(tmp_path / "b.parquet")], recipe, 200)
    by_column = QualitySettings(scorers=[ColumnScorerSettings(column="edu")])
    with pytest.raises(SettingsError, match="no document will have a column 'edu'"):
        find_candidate(files, recipe.model_copy(update={"quality": by_column}), 200)
    beside = QualitySettings(scorers=[SidecarScorerSettings(path=f"{tmp_path}/{{shard}}.npy")])
    with pytest.raises(SettingsError, match="a scorer of kind sidecar"):
        find_candidate(files, recipe.model_copy(update={"quality": beside}), 200)
