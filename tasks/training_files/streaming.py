"""Write documents in the formats of libraries that stream them: MosaicML's MDS and litdata, by their own writers."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.training_files.order import ROW_GROUP


class WriterError(ModelError):
    """A format's own library is not installed."""


PACKAGES = {"mds": ("streaming", "mosaicml-streaming"), "litdata": ("litdata.streaming.writer", "litdata")}
"""The module that writes each format, and the package that it is in."""


def load_package(kind: str) -> Any:  # noqa: ANN401 - a module that is not always there
    """Return the module that writes a format.

    Raises
    ------
    WriterError
        If it is not installed.
    """
    module, package = PACKAGES[kind]
    try:
        return import_module(module)
    except ImportError as error:
        raise WriterError(
            f"the format {kind} needs {package}, received {error}: pip install '.[{kind}]' in a checkout, or that "
            "package"
        ) from error


def _documents(files: Sequence[Path]) -> Iterator[dict[str, str]]:
    for path in files:
        with VerifiedFile(path) as file:
            for batch in file.iter_batches(ROW_GROUP):
                raise_if_stopped()
                yield from batch.to_pylist()


def write_mds(files: Sequence[Path], settings: ExportSettings, folder: Path) -> None:
    """Write the documents of Parquet files as MDS shards: https://docs.mosaicml.com/projects/streaming."""
    writer = load_package("mds").MDSWriter(
        out=str(folder), columns={"text": "str", "id": "str"}, size_limit=settings.file_size, hashes=[]
    )
    with writer:
        for document in _documents(files):
            writer.write(document)


def write_litdata(files: Sequence[Path], settings: ExportSettings, folder: Path) -> None:
    """Write the documents of Parquet files as litdata chunks: https://github.com/Lightning-AI/litData."""
    writing = load_package("litdata")
    folder.mkdir(parents=True, exist_ok=True)
    writer = writing.BinaryWriter(str(folder), chunk_bytes=settings.file_size)
    for index, document in enumerate(_documents(files)):
        writer.add_item(index, document)
    writer.done()
    writer.merge()


WRITERS: dict[str, Callable[[Sequence[Path], ExportSettings, Path], None]] = {
    "mds": write_mds,
    "litdata": write_litdata,
}
