import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.training_files import ROW_GROUP, divide, random_keys, write_documents


def written(files):
    return [text for file in files for text in pq.read_table(file)["text"].to_pylist()]


def settings(**changes):
    return ExportSettings(**{"format": "parquet", "file_size": 2**16} | changes)


def test_every_document_is_there_once_in_a_random_order(dataset, texts, tmp_path):
    shuffled = written(write_documents(*dataset, settings(), tmp_path / "a"))
    assert sorted(shuffled) == sorted(texts)
    assert shuffled != texts
    assert written(write_documents(*dataset, settings(), tmp_path / "b")) == shuffled
    assert written(write_documents(*dataset, settings(seed=1), tmp_path / "c")) not in (shuffled, texts)
    assert [path.name for path in sorted((tmp_path / "a").iterdir())] == ["00000.parquet", "00001.parquet"]


def test_the_order_of_the_dataset_can_be_kept(dataset, texts, tmp_path):
    assert written(write_documents(*dataset, settings(shuffle=False), tmp_path / "a")) == texts


def test_a_dataset_of_other_documents_is_refused(dataset, tmp_path):
    found, manifest = dataset
    for number, rows in enumerate((len(manifest.files), manifest.details["rows"] - 1, manifest.details["rows"] + 1)):
        wrong = manifest.model_copy(update={"details": {**manifest.details, "rows": rows}})
        with pytest.raises(VerifyError, match="must hold the"):
            write_documents(found, wrong, settings(), tmp_path / str(number))


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_damaged_file_of_the_dataset_is_named(dataset, tmp_path, shuffle):
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
        write_documents(copied, manifest, settings(shuffle=shuffle), tmp_path / "a")


@given(st.integers(1, 30_000), st.integers(1, 10**7), st.integers(2**10, 10**7))
def test_files_have_equal_numbers_of_whole_row_groups(documents, size, file_size):
    places = divide(documents, size, file_size)
    assert [place.start for place in places] == [0, *(place.stop for place in places[:-1])]
    assert places[-1].stop == documents
    sizes = [len(place) for place in places]
    assert len(set(sizes[:-1])) <= 1
    assert all(0 < last <= sizes[0] for last in sizes)
    assert sizes[0] <= ROW_GROUP or sizes[0] % ROW_GROUP == 0
    assert documents == 1 or len(places) >= 2 or sizes[0] <= ROW_GROUP


def test_keys_depend_on_place_and_seed_only():
    whole = random_keys(0, 1_000, seed=3)
    assert np.array_equal(np.concatenate([random_keys(0, 400, 3), random_keys(400, 600, 3)]), whole)
    assert len(set(whole.tolist())) == 1_000
    assert not np.intersect1d(whole, random_keys(0, 1_000, seed=4)).size
    ranks = np.argsort(np.argsort(random_keys(0, 100_000, seed=0)))
    assert abs(np.corrcoef(ranks, np.arange(100_000))[0, 1]) < 0.01
    assert random_keys(0, 1, 2**63 - 1).dtype == np.uint64
