import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.training_files import WriterError, write_documents, write_shards


@pytest.fixture(scope="module")
def documents(dataset, tmp_path_factory):
    settings = ExportSettings(format="mds", file_size=2**16)
    files = write_documents(*dataset, settings, tmp_path_factory.mktemp("documents") / "files")
    return files, [row for file in files for row in pq.read_table(file).to_pylist()]


def test_mds_holds_the_same_documents_in_order(documents, tmp_path):
    streaming = pytest.importorskip("streaming", exc_type=ImportError)
    files, rows = documents
    write_shards(files, ExportSettings(format="mds", file_size=2**16), tmp_path / "a")
    read = streaming.StreamingDataset(local=str(tmp_path / "a"), batch_size=1)
    assert [read[number] for number in range(len(read))] == rows


def test_litdata_holds_the_same_documents_in_order(documents, tmp_path):
    litdata = pytest.importorskip("litdata")
    files, rows = documents
    write_shards(files, ExportSettings(format="litdata", file_size=2**16), tmp_path / "a")
    read = litdata.StreamingDataset(str(tmp_path / "a"))
    assert [read[number] for number in range(len(read))] == rows


@pytest.mark.parametrize(("format_", "package"), [("mds", "streaming"), ("litdata", "litdata.streaming.writer")])
def test_a_missing_package_is_named(format_, package, documents, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(WriterError, match="pip install"):
        write_shards(documents[0], ExportSettings(format=format_), tmp_path / "a")
