"""Export a dataset as files that trainers read, in the order of training: Parquet, or tokens.

All documents are in random order, divided evenly among files: DuckDB sorts them by random numbers, and spills to disk
what does not fit into memory. An export is these files, with a card and a record, which replace the last one.

Files of tokens are written by datatrove's steps (https://github.com/huggingface/datatrove, `pipeline/tokens`). Every
document ends with one token that marks its end; nothing is added before it.

- `megatron`: `.bin`, the tokens, and `.idx`, the length of each document; read by Megatron-LM, NeMo and GPT-NeoX.
- `nanotron`: `.ds`, the tokens, `.ds.index`, where each document ends, and `.ds.metadata`.
"""

import json
import os
from collections.abc import Iterator
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.errors import FinewebMaskError, ModelError, SettingsError, WorkspaceError
from fineweb_mask.models.runtime.progress import track, track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.models.urls import HUB
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.dataset.output import CARD, described, write_record
from fineweb_mask.tasks.dataset.verify import Dataset, VerifyError, find_dataset
from fineweb_mask.tasks.inference.model_files import model_file
from fineweb_mask.tasks.outputs import check_output
from fineweb_mask.tasks.reporting.templating import render
from fineweb_mask.tasks.storage.atomic import atomic_folder, tree_files
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, is_product
from fineweb_mask.tasks.workspace.records.runs import code_and_packages
from fineweb_mask.tasks.workspace.references import file_digest

EXPORT, FOLDER = "export", "exports"
TOKENS = frozenset({".bin", ".ds"})
"""Endings of the files that hold nothing but tokens."""
SEED = 0
"""Seed of the random order."""
DOCUMENTS = pa.schema([pa.field("text", pa.string(), nullable=False), pa.field("id", pa.string(), nullable=False)])
ROW_GROUP = 1_000
"""Documents of a row group: trainers read one at a time, and skip to another when they resume."""
LEAST_FILES = 2
"""Some trainers take the last file for validation, the others for training."""
BATCH_ROWS = 5_000
MEMORY = "2GB"
COMMON_END = "<|endoftext|>"
"""The token after a document where the tokenizer's configuration names none, such as GPT-2's."""
SMALL_VOCABULARY = 2**16
"""Tokens that two bytes can number."""


class WriterError(ModelError):
    """The package that writes tokens is not installed."""


class TokenizerError(ModelError):
    """A tokenizer cannot be used."""


class ExportJob(ProductJob):
    """Write the training files of one format."""

    stage: ClassVar[Stage] = Stage(EXPORT, version=4, folders=(FOLDER,))
    dataset: str  # digest of the dataset's content
    place: str  # folder or URL of the dataset
    settings: ExportSettings
    elsewhere: str | None = None  # folder of the files, if it is not the workspace's own

    @property
    def name(self) -> str:
        """The name of the export's folder."""
        return self.folder.name

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.workspace.root / FOLDER / self.settings.folder if self.elsewhere is None else Path(self.elsewhere)

    @property
    def manifest_path(self) -> Path:
        """The record of the files."""
        return self.folder / PROVENANCE

    def depends_on(self) -> Dependencies:
        """Return the settings, and the digests of the dataset and the tokenizer.

        Raises
        ------
        ModelNotFoundError
            If the tokenizer does not exist, or cannot be downloaded.
        """
        inputs = [self.dataset]
        if self.settings.tokenizer is not None:
            tokenizer = Tokenizer(self.settings.tokenizer)
            inputs += [file_digest(tokenizer.path), tokenizer.end_token]
        return Dependencies(settings=self.settings.model_dump(exclude={"name", "tokenizer"}), inputs=inputs)


@stage_task
def export(job: ExportJob) -> None:
    """Write the files, with a card and a record.

    Raises
    ------
    SettingsError
        If the folder holds something else.
    ModelError
        If the tokenizer cannot be used, or the package that writes tokens is not installed.
    VerifyError
        If the dataset is not as its record says.
    DamagedFileError
        If one of its files is damaged.
    WorkspaceError
        If the dataset is not the one that the job was planned for.
    """
    dataset = find_dataset(job.place)
    if dataset.manifest.content != job.dataset:
        raise WorkspaceError(f"the dataset at {job.place} changed while the run was going on: run again")
    settings, folder = job.settings, job.folder
    check_folder(folder, EXPORT, dataset.url)
    details: dict[str, Any] = {
        "rows": dataset.details.rows,
        "dataset": job.dataset,
        "settings": settings.model_dump(exclude={"tokenizer"}),
        **code_and_packages(),
    }
    tokenizer = None if settings.tokenizer is None else Tokenizer(settings.tokenizer)
    with atomic_folder(folder) as new:
        write_files(dataset, settings, tokenizer, new, folder.with_name(f".{folder.name}.spill"))
        if tokenizer is not None:
            size = sum(file.stat().st_size for file in new.iterdir() if file.suffix in TOKENS)
            details |= {
                "tokens": size // tokenizer.token_bytes,
                "token_bytes": tokenizer.token_bytes,
                "end_token": tokenizer.end_token,
                "tokenizer": tokenizer.path.name if "/" in tokenizer.name else tokenizer.name,
                "tokenizer_sha256": file_digest(tokenizer.path),
            }
        names = {  # what trainers are told to read
            "parquet": [file.name for file in tree_files(new)][:-1],
            "megatron": [file.stem for file in sorted(new.glob("*.idx"))],
            "nanotron": [],
        }
        card = render("export.md", settings=settings, details=details, names=names[settings.format])
        (new / CARD).write_text(card, encoding="utf-8")
        write_record(new, job.key, described(new, tree_files(new)), details)


def check_format(settings: ExportSettings, where: str) -> None:
    """Check that the tokenizer of a format of tokens can be used, and that the package that writes it is installed.

    Raises
    ------
    SettingsError
        If not; the message begins with `where`.
    """
    try:
        if settings.tokenizer is not None:
            load_step(settings.format)
            _ = Tokenizer(settings.tokenizer).loaded
    except FinewebMaskError as error:
        raise SettingsError(f"{where}: {error}") from error


def check_folder(folder: Path, setting: str, dataset: str) -> None:
    """Check that an export of the dataset at a folder or URL may be written to a folder.

    Raises
    ------
    OutputError
        If something else would be lost, or the folder is in a workspace, but not in its folder of exports.
    """
    check_output(folder, setting, [dataset], replaces=is_product(folder, EXPORT), folder=True, within=FOLDER)


def write_files(
    dataset: Dataset, settings: ExportSettings, tokenizer: "Tokenizer | None", folder: Path, spill: Path
) -> None:
    """Write a dataset's documents to files in a folder; `spill` is a folder for what does not fit into memory."""
    rows, size = dataset.details.rows, sum(dataset.manifest.files[name].bytes for name in dataset.data_files)
    files = min(max(LEAST_FILES, -(-size // dataset.details.file_size)), rows)
    with spilling_database(spill, MEMORY, "export", file="documents.duckdb") as connection:
        connection.execute("CREATE TABLE documents (place BIGINT, text VARCHAR, id VARCHAR)")
        random, found = np.random.default_rng(SEED), 0
        batches = _read(dataset)
        for batch in track_by_size("documents read", batches, rows, lambda one: one.num_rows, part=(0, 0.3)):
            first, found = found, found + batch.num_rows
            places = random.integers(2**63 - 1, size=len(batch)) if settings.shuffle else np.arange(first, found)
            connection.from_arrow(pa.table([places, *batch.columns], names=["place", "text", "id"])).insert_into(
                "documents"
            )
        if found != rows:
            raise VerifyError(
                f"{dataset.url} must hold the {rows:,} documents of its record, it holds {found:,}: verify it"
            )
        in_order = connection.sql("SELECT text, id FROM documents ORDER BY place, id").to_arrow_reader(ROW_GROUP)
        documents = chain.from_iterable(batch.to_pylist() for batch in in_order)
        for number in track("files written", range(files), part=(0.3, 1)):
            own = islice(documents, rows * (number + 1) // files - rows * number // files)
            if tokenizer is None:
                _write_parquet(own, folder / f"{number:05d}.parquet")
            else:
                write_tokens(own, tokenizer, settings.format, folder, f"{number:05d}")


def _read(dataset: Dataset) -> Iterator[pa.RecordBatch]:
    for name in dataset.data_files:
        with dataset.open(name) as stream, VerifiedFile(stream, name) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=DOCUMENTS.names):
                yield batch.select(DOCUMENTS.names)


def _write_parquet(documents: Iterator[dict[str, Any]], path: Path) -> None:
    with pq.ParquetWriter(path, DOCUMENTS, compression="zstd", write_page_checksum=True, use_dictionary=False) as file:
        while some := list(islice(documents, ROW_GROUP)):
            file.write_table(pa.Table.from_pylist(some, schema=DOCUMENTS))


class Tokenizer:
    """A tokenizer of the Hugging Face library, which ends every text with a token.

    A text that spells a special token is read as text, so that every document ends once; datatrove by itself finds the
    token in it.

    Parameters
    ----------
    name
        A tokenizer.json, its folder, or a model of the hub.

    Raises
    ------
    TokenizerError
        When it is used, if the file is not a tokenizer, lacks the token, or reads it in texts, too.
    ModelNotFoundError
        If there is no such file, or it cannot be downloaded.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._address = _address_of(name)
        self.path = model_file(self._address, "tokenizer")

    @cached_property
    def end_token(self) -> str:
        """The token at the end of a document: the one that tokenizer_config.json, beside the tokenizer, names."""
        config = self.path.with_name("tokenizer_config.json")
        if self._address.startswith(HUB):
            config = model_file(f"{self._address.rpartition('/')[0]}/{config.name}", "tokenizer")
        named = json.loads(config.read_text(encoding="utf-8")).get("eos_token") if config.is_file() else None
        return str(named["content"] if isinstance(named, dict) else named or COMMON_END)

    @cached_property
    def loaded(self) -> Any:  # noqa: ANN401 - of `tokenizers`, without types
        """The tokenizer."""
        from tokenizers import Tokenizer as Loaded
        from tokenizers.processors import TemplateProcessing

        from fineweb_mask.models.forward.tokens import read_as_text

        name, end_token = self.name, self.end_token
        try:
            loaded = Loaded.from_file(str(self.path))
        except Exception as error:  # the library raises no other
            raise TokenizerError(f"tokenizer: {name} must be a tokenizer.json: {error}") from error
        if (end := loaded.token_to_id(end_token)) is None:
            raise TokenizerError(
                f"tokenizer: {name} has no token {end_token!r}: write the one that ends a text as eos_token into the "
                "tokenizer_config.json beside it"
            )
        read_as_text(loaded, [end_token])
        if end in loaded.encode(loaded.decode([end], skip_special_tokens=False), add_special_tokens=False).ids:
            raise TokenizerError(
                f"tokenizer: {name} finds {end_token!r} in texts, too: write one of its special tokens as eos_token "
                "into the tokenizer_config.json beside it"
            )
        loaded.post_processor = TemplateProcessing(single="$A <end>", pair=None, special_tokens=[("<end>", end)])
        loaded.no_truncation()
        loaded.no_padding()
        return loaded

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of a token: 2, or 4 for a vocabulary of more than 65,536."""
        return 2 if self.loaded.get_vocab_size() <= SMALL_VOCABULARY else 4


def _address_of(name: str) -> str:
    """Return the path of a tokenizer's file, or its address on the hub."""
    place = Path(name)
    if place.is_dir():
        place /= "tokenizer.json"
    if not name.startswith(HUB):
        if place.exists() or place.suffix == ".json":
            return str(place)
        if name.count("/") > 1:
            raise SettingsError(
                f"tokenizer: {name!r} does not exist: give a tokenizer.json, or a model's name on the hub"
            )
    repository = name.removeprefix(HUB) if "/" in name else f"openai-community/{name}"  # gpt2 and its like
    return f"{HUB}{repository}" if repository.endswith(".json") else f"{HUB}{repository}/tokenizer.json"


def write_tokens(documents: Iterator[dict[str, Any]], tokenizer: Tokenizer, kind: str, folder: Path, stem: str) -> None:
    """Write documents as tokens, in their order, to files whose names begin with `stem` in a folder."""
    from datatrove.data import Document

    def read() -> Iterator[Document]:
        for document in documents:
            raise_if_stopped()
            yield Document(**document)

    options = {} if kind == "megatron" else {"shuffle_documents": False}
    step = load_step(kind)(str(folder), tokenizer_name_or_path=tokenizer.path.name, batch_size=ROW_GROUP, **options)
    step.tokenizer = tokenizer.loaded  # its place is this machine's
    if kind == "megatron":
        step.write_tokens(read(), stem)
    else:
        step.write_unshuffled(read(), f"{stem}.ds")


def load_step(kind: str) -> Any:  # noqa: ANN401 - of a module that is not always there
    """Return datatrove's step that writes a format of tokens.

    Raises
    ------
    WriterError
        If it is not installed.
    """
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")  # datatrove's log
    try:
        from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer
        from datatrove.pipeline.tokens.tokenizer import DocumentTokenizer
    except ImportError as error:
        raise WriterError(
            f"files of tokens need datatrove, received {error}: pip install '.[filters]' in a checkout, or the "
            "packages of the extra `filters` in pyproject.toml"
        ) from error
    return MegatronDocumentTokenizer if kind == "megatron" else DocumentTokenizer
