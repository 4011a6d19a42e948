import re
import shutil
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks import export
from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset
from fineweb_mask.tasks.export import ROW_GROUP, write_files
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageKey


def written(dataset, folder, *, shuffle=True):
    """Return the texts of each file."""
    folder.mkdir(exist_ok=True)
    write_files(dataset, ExportSettings(format="parquet", shuffle=shuffle), None, folder, folder.with_name("spill"))
    return [pq.read_table(file)["text"].to_pylist() for file in sorted(folder.iterdir())]


def test_every_document_is_there_once_in_a_random_order_in_files_of_one_size(dataset, texts, tmp_path, monkeypatch):
    shuffled = written(dataset, tmp_path / "a")
    monkeypatch.setattr(export, "BATCH_ROWS", 3)
    assert written(dataset, tmp_path / "b") == shuffled
    assert sorted(chain(*shuffled)) == sorted(texts)
    assert abs(len(shuffled[0]) - len(shuffled[1])) <= 1
    assert not {texts[0], texts[-1]} >= {shuffled[0][0], shuffled[1][-1]}
    assert [path.name for path in sorted((tmp_path / "a").iterdir())] == ["00000.parquet", "00001.parquet"]
    assert list(chain(*written(dataset, tmp_path / "c", shuffle=False))) == texts  # the order of the dataset
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_dataset_of_other_documents_is_refused(dataset, tmp_path):
    for number, rows in enumerate((dataset.details.rows - 1, dataset.details.rows + 1)):
        wrong = dataset._replace(details=dataset.details.model_copy(update={"rows": rows}))
        with pytest.raises(VerifyError, match="must hold the"):
            written(wrong, tmp_path / str(number))


def test_a_damaged_file_of_the_dataset_is_named(dataset, tmp_path):
    copied = find_dataset(str(shutil.copytree(dataset.url, tmp_path / "dataset")))
    name = dataset.data_files[0]
    path = tmp_path / "dataset" / name
    group, content = pq.read_metadata(path).row_group(0), bytearray(path.read_bytes())
    columns = map(group.column, range(group.num_columns))
    texts = next(column for column in columns if column.path_in_schema == "text")
    content[texts.data_page_offset + texts.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"^{re.escape(name)} is damaged: "):
        written(copied, tmp_path / "a")


def test_row_groups_are_small_and_every_file_of_the_size_has_documents_of_all_places(tmp_path):
    n = 5_003
    key = StageKey(stage="materialize", version=1, settings="s", inputs="i")
    (tmp_path / "dataset").mkdir()
    path = tmp_path / "dataset" / "part.parquet"
    pq.write_table(pa.table({"text": [f"{row:099d}" for row in range(n)], "id": [str(row) for row in range(n)]}), path)
    recipe = {"materialize": {"file_size": path.stat().st_size // 3 + 1}}
    write_manifest(tmp_path / "dataset" / "provenance.json", key, [path], {"rows": n, "recipe": recipe})
    made = written(find_dataset(str(tmp_path / "dataset")), tmp_path / "a")
    files = [np.array(texts, dtype=int) for texts in made]
    assert [len(file) for file in files] == [1_667, 1_668, 1_668]
    assert sorted(np.concatenate(files).tolist()) == list(range(n))
    for file, path in zip(files, sorted((tmp_path / "a").iterdir()), strict=True):
        assert abs(np.corrcoef(file, np.arange(len(file)))[0, 1]) < 0.1
        assert abs(file.mean() / n - 0.5) < 0.01
        assert pq.read_metadata(path).row_group(0).num_rows == ROW_GROUP
