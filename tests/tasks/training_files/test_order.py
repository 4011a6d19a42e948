import re
import shutil
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks import training_files
from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset, read_provenance
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.training_files import ROW_GROUP, write_files
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageKey


def written(dataset, folder, **changes):
    """Return the texts of each file."""
    folder.mkdir()
    write_files(*dataset, settings(**changes), folder, folder.with_name("spill"))
    return [pq.read_table(file)["text"].to_pylist() for file in sorted(folder.iterdir())]


def settings(**changes):
    return ExportSettings(**{"format": "parquet", "file_size": 2**16} | changes)


def test_every_document_is_there_once_in_a_random_order_in_files_of_one_size(dataset, texts, tmp_path, monkeypatch):
    shuffled = written(dataset, tmp_path / "a")
    monkeypatch.setattr(training_files, "BATCH_ROWS", 3)
    assert written(dataset, tmp_path / "b") == shuffled
    assert sorted(chain(*shuffled)) == sorted(texts)
    assert abs(len(shuffled[0]) - len(shuffled[1])) <= 1
    assert not {texts[0], texts[-1]} >= {shuffled[0][0], shuffled[1][-1]}
    assert written(dataset, tmp_path / "c", seed=1) not in (shuffled, texts)
    assert [path.name for path in sorted((tmp_path / "a").iterdir())] == ["00000.parquet", "00001.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_the_order_of_the_dataset_can_be_kept(dataset, texts, tmp_path):
    assert list(chain(*written(dataset, tmp_path / "a", shuffle=False))) == texts


def test_a_dataset_of_other_documents_is_refused(dataset, tmp_path):
    found, manifest = dataset
    for number, rows in enumerate((manifest.details["rows"] - 1, manifest.details["rows"] + 1)):
        wrong = manifest.model_copy(update={"details": {**manifest.details, "rows": rows}})
        with pytest.raises(VerifyError, match="must hold the"):
            write_files(found, wrong, settings(), tmp_path, tmp_path / str(number))


def test_a_damaged_file_of_the_dataset_is_named(dataset, tmp_path):
    found, manifest = dataset
    copied = find_dataset(str(shutil.copytree(found.url, tmp_path / "dataset")))
    name = next(name for name in manifest.files if name.endswith(".parquet"))
    path = tmp_path / "dataset" / name
    group, content = pq.read_metadata(path).row_group(0), bytearray(path.read_bytes())
    columns = map(group.column, range(group.num_columns))
    texts = next(column for column in columns if column.path_in_schema == "text")
    content[texts.data_page_offset + texts.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"^{re.escape(name)} is damaged: "):
        write_files(copied, manifest, settings(), tmp_path, tmp_path / "spill")


def test_row_groups_are_small_and_every_file_has_documents_of_all_places(tmp_path):
    n = 5_003
    key = StageKey(stage="materialize", version=1, settings="s", inputs="i")
    (tmp_path / "dataset").mkdir()
    path = tmp_path / "dataset" / "part.parquet"
    pq.write_table(pa.table({"text": [f"{row:099d}" for row in range(n)], "id": [str(row) for row in range(n)]}), path)
    write_manifest(tmp_path / "dataset" / "provenance.json", key, [path], {"rows": n})
    found = find_dataset(str(tmp_path / "dataset"))
    files = [np.array(texts, dtype=int) for texts in written((found, read_provenance(found)), tmp_path / "a")]
    assert sorted(np.concatenate(files).tolist()) == list(range(n))
    for file, path in zip(files, sorted((tmp_path / "a").iterdir()), strict=True):
        assert abs(np.corrcoef(file, np.arange(len(file)))[0, 1]) < 0.1
        assert abs(file.mean() / n - 0.5) < 0.01
        assert pq.read_metadata(path).row_group(0).num_rows == ROW_GROUP
