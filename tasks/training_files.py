"""Write the documents of a dataset as training files: in the order of training, as texts or tokens.

All are in random order, divided evenly among files: DuckDB sorts them by random numbers, and spills to disk what does
not fit into memory.

Files of tokens are written by datatrove's steps (https://github.com/huggingface/datatrove, `pipeline/tokens`). Every
document ends with one token that marks its end; nothing is added before it.

- `megatron`: `.bin`, the tokens, and `.idx`, the length of each document; read by Megatron-LM, NeMo and GPT-NeoX.
- `nanotron`: `.ds`, the tokens, `.ds.index`, where each document ends, and `.ds.metadata`.
"""

import json
import os
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.runtime.progress import track, track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.dataset.verify import DATA_SUFFIX, Dataset, VerifyError
from fineweb_mask.tasks.inference.model_files import model_file
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.manifest import Manifest

DOCUMENTS = pa.schema([pa.field("text", pa.string(), nullable=False), pa.field("id", pa.string(), nullable=False)])
ROW_GROUP = 1_000
"""Documents of a row group: trainers read one at a time, and skip to another when they resume."""
LEAST_FILES = 2
"""Some trainers take the last file for validation, the others for training."""
BATCH_ROWS = 5_000
MEMORY = "2GB"
COMMON_END = "<|endoftext|>"
SMALL_VOCABULARY = 2**16
"""Tokens that two bytes can number."""
STEPS = {
    "megatron": ("datatrove.pipeline.tokens.megatron_tokenizer", "MegatronDocumentTokenizer"),
    "nanotron": ("datatrove.pipeline.tokens.tokenizer", "DocumentTokenizer"),
}
"""The step of datatrove that writes each format of tokens."""


def write_files(dataset: Dataset, manifest: Manifest, settings: ExportSettings, folder: Path, spill: Path) -> None:
    """Write the documents of a dataset to files in a folder; `spill` is a folder for what does not fit into memory.

    Raises
    ------
    VerifyError
        If the dataset does not hold as many documents as its record says.
    DamagedFileError
        If one of its files is damaged.
    ModelError
        If the tokenizer cannot be used, or the package that writes tokens is not installed.
    """
    rows = int(manifest.details["rows"])
    size = sum(file.bytes for name, file in manifest.files.items() if name.endswith(DATA_SUFFIX))
    files = min(max(LEAST_FILES, -(-size // settings.file_size)), rows)
    tokenizer = Tokenizer(settings) if settings.holds_tokens else None
    with spilling_database(spill, MEMORY, "export", file="documents.duckdb") as connection:
        connection.execute("CREATE TABLE documents (place BIGINT, text VARCHAR, id VARCHAR)")
        random, found = np.random.default_rng(settings.seed), 0
        batches = _read(dataset, manifest)
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


def _read(dataset: Dataset, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    for name in sorted(name for name in manifest.files if name.endswith(DATA_SUFFIX)):
        with dataset.open(name) as stream, VerifiedFile(stream, name) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=DOCUMENTS.names):
                yield batch.select(DOCUMENTS.names)


def _write_parquet(documents: Iterator[dict[str, Any]], path: Path) -> None:
    with pq.ParquetWriter(path, DOCUMENTS, compression="zstd", write_page_checksum=True, use_dictionary=False) as file:
        while some := list(islice(documents, ROW_GROUP)):
            file.write_table(pa.Table.from_pylist(some, schema=DOCUMENTS))


class WriterError(ModelError):
    """The package that writes tokens is not installed."""


class TokenizerError(ModelError):
    """A tokenizer cannot be used."""


class Tokenizer:
    """A tokenizer of the Hugging Face library, which ends every text with a token.

    A text that spells a special token is read as text, so that every document ends once; datatrove by itself finds the
    token in it.

    Parameters
    ----------
    settings
        The name of the tokenizer, and of the token at the end.

    Raises
    ------
    TokenizerError
        When it is used, if the file is not a tokenizer, lacks the token, or reads it in texts, too.
    ModelNotFoundError
        If there is no such file, or it cannot be downloaded.
    """

    def __init__(self, settings: ExportSettings) -> None:
        self._name = str(settings.tokenizer)
        self._end = settings.end_token
        self.path = _tokenizer_file(self._name)

    @cached_property
    def end_token(self) -> str:
        """The token at the end of a document."""
        if self._end is not None:
            return self._end
        config = self.path.with_name("tokenizer_config.json")
        if config.is_file():
            named = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
            named = named.get("content") if isinstance(named, dict) else named
            if named:
                return str(named)
        return COMMON_END

    @cached_property
    def loaded(self) -> Any:  # noqa: ANN401 - of `tokenizers`, without types
        """The tokenizer."""
        from tokenizers import Tokenizer as Loaded
        from tokenizers.processors import TemplateProcessing

        from fineweb_mask.models.forward.tokens import read_as_text

        name, end_token = self._name, self.end_token
        try:
            loaded = Loaded.from_file(str(self.path))
        except Exception as error:  # the library raises no other
            raise TokenizerError(f"tokenizer: {name} must be a tokenizer.json: {error}") from error
        if (end := loaded.token_to_id(end_token)) is None:
            raise TokenizerError(
                f"end_token: {name} has no token {end_token!r}: set end_token to the one that ends a text"
            )
        read_as_text(loaded, [end_token])
        if end in loaded.encode(loaded.decode([end], skip_special_tokens=False), add_special_tokens=False).ids:
            raise TokenizerError(
                f"end_token: {name} finds {end_token!r} in texts, too: set end_token to one of its special tokens"
            )
        loaded.post_processor = TemplateProcessing(single="$A <end>", pair=None, special_tokens=[("<end>", end)])
        loaded.no_truncation()
        loaded.no_padding()
        return loaded

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of a token: 2, or 4 for a vocabulary of more than 65,536."""
        return 2 if self.loaded.get_vocab_size() <= SMALL_VOCABULARY else 4


def _tokenizer_file(name: str) -> Path:
    place = Path(name)
    if place.is_dir():
        place /= "tokenizer.json"
    if place.exists() or place.suffix == ".json":
        return model_file(str(place), "tokenizer")
    if name.count("/") > 1 and not name.startswith("hf://"):
        raise SettingsError(f"tokenizer: {name!r} does not exist: give a tokenizer.json, or a model's name on the hub")
    repository = name.removeprefix("hf://") if "/" in name else f"openai-community/{name}"  # gpt2 and its like
    address = repository if repository.endswith(".json") else f"{repository}/tokenizer.json"
    return model_file(f"hf://{address}", "tokenizer")


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
    """Return the step that writes a format of tokens.

    Raises
    ------
    WriterError
        If it is not installed.
    """
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")  # datatrove's log
    module, name = STEPS[kind]
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise WriterError(
            f"files of tokens need datatrove, received {error}: pip install '.[filters]' in a checkout, or the "
            "packages of the extra `filters` in pyproject.toml"
        ) from error
