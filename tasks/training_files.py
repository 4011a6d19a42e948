"""Write the documents of a dataset as training files: in the order of training, as texts or tokens.

All are in random order, divided evenly among files. DuckDB sorts them by a hash of the seed and their place in the
dataset, and spills what does not fit into memory.

Files of tokens are those of datatrove's writers (https://github.com/huggingface/datatrove, `pipeline/tokens`), byte for
byte. Every document ends with one token that marks its end; nothing is added before it.

- `megatron`: `.bin`, the tokens, and `.idx`, the length of each document; read by Megatron-LM, NeMo and GPT-NeoX.
- `nanotron`: `.ds`, the tokens, `.ds.index`, where each document ends, and `.ds.metadata`.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.dedup.minhash import MULTIPLIER, mix
from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.verify import DATA_SUFFIX, Dataset, VerifyError
from fineweb_mask.tasks.dataset.writers import rows_of
from fineweb_mask.tasks.inference.model_files import model_file
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.manifest import Manifest

DOCUMENTS = pa.schema([pa.field("text", pa.string(), nullable=False), pa.field("id", pa.string(), nullable=False)])
ROW_GROUP = 1_000
"""Documents of a row group: trainers read one at a time, and skip to another when they resume."""
LEAST_FILES = 2
"""Some trainers take the last file for validation, the others for training."""
BATCH_ROWS = 5_000
MEMORY_LIMIT = "2GB"
COMMON_END = "<|endoftext|>"
SMALL_VOCABULARY = 2**16
"""Tokens that two bytes can number."""
MODULES = {
    "megatron": "datatrove.pipeline.tokens.megatron_tokenizer",
    "nanotron": "datatrove.pipeline.tokens.tokenizer",
}
"""The module that writes each format of tokens."""


def divide(documents: int, size: int, file_size: int) -> list[range]:
    """Return the documents of each file, for a dataset of so many documents and bytes.

    Every file but the last has the same number, full row groups of them where there are enough.

    >>> divide(5_000, 10_000, 5_000)
    [range(0, 3000), range(3000, 5000)]
    """
    files = max(LEAST_FILES, -(-size // file_size))
    each = max(1, -(-documents // files))
    if each > ROW_GROUP:
        each = -(-each // ROW_GROUP) * ROW_GROUP
    return [range(first, min(first + each, documents)) for first in range(0, documents, each)]


def write_documents(
    dataset: Dataset, manifest: Manifest, settings: ExportSettings, folder: Path, part: tuple[float, float] = (0, 1)
) -> list[Path]:
    """Write the texts and ids of a dataset to Parquet files in a folder, and return these.

    Raises
    ------
    VerifyError
        If the dataset does not hold as many documents as its record says.
    DamagedFileError
        If one of its files is damaged.
    """
    rows = int(manifest.details["rows"])
    size = sum(file.bytes for name, file in manifest.files.items() if name.endswith(DATA_SUFFIX))
    places = divide(rows, size, settings.file_size)
    folder.mkdir(parents=True)
    batches = _read(dataset, manifest)
    if settings.shuffle:
        batches = _sorted(batches, settings.seed, folder)
    ordered = track_by_size("documents ordered", batches, rows, lambda batch: batch.num_rows, part=part)
    files = [folder / f"{number:05d}.parquet" for number in range(len(places))]
    sizes = [[len(place[first : first + ROW_GROUP]) for first in range(0, len(place), ROW_GROUP)] for place in places]
    groups = _regrouped(ordered, [*chain.from_iterable(sizes), 1])
    written = 0
    for path, of_file in zip(files, sizes, strict=True):
        with pq.ParquetWriter(
            path, DOCUMENTS, compression="zstd", write_page_checksum=True, use_dictionary=False
        ) as file:
            for group in islice(groups, len(of_file)):
                written += group.num_rows
                file.write_table(group, row_group_size=ROW_GROUP)
    if written != rows or next(groups).num_rows:
        raise VerifyError(f"{dataset.url} must hold the {rows:,} documents of its record, it holds others: verify it")
    return files


def _regrouped(batches: Iterator[pa.RecordBatch], sizes: Iterable[int]) -> Iterator[pa.Table]:
    """Yield the documents in groups of these sizes, of which the last ones are smaller if there are too few."""
    held = DOCUMENTS.empty_table()
    for size in sizes:
        while held.num_rows < size and (batch := next(batches, None)) is not None:
            held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        yield held.slice(0, size).combine_chunks()
        held = held.slice(size)


def _read(dataset: Dataset, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    for name in sorted(name for name in manifest.files if name.endswith(DATA_SUFFIX)):
        raise_if_stopped()
        with dataset.open(name) as stream:
            yield from rows_of(name, stream, DOCUMENTS)


def random_keys(first: int, count: int, seed: int) -> NDArray[np.uint64]:
    """Return a hash of the seed and of each of `count` numbers from `first` on, (count,): that of SplitMix64.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    with np.errstate(over="ignore"):
        state = np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)
        return mix(state * MULTIPLIER + np.uint64(seed) * np.uint64(0xD1342543DE82EF95))


def _sorted(batches: Iterator[pa.RecordBatch], seed: int, folder: Path) -> Iterator[pa.RecordBatch]:
    """Yield the documents in the order of their keys; equal keys, which are rare, in that of the dataset."""
    columns = pa.schema([("key", pa.uint64()), ("place", pa.uint64()), *DOCUMENTS])
    failed: list[Exception] = []  # while documents were read; DuckDB raises its text alone

    def with_keys() -> Iterator[pa.RecordBatch]:
        first = 0
        try:
            for batch in batches:
                raise_if_stopped()
                keys = pa.array(random_keys(first, batch.num_rows, seed))
                places = pa.array(np.arange(first, first + batch.num_rows, dtype=np.uint64))
                yield pa.record_batch([keys, places, *batch.columns], schema=columns)
                first += batch.num_rows
        except Exception as error:
            failed.append(error)
            raise

    spilled = folder / "spilled"
    config: dict[str, Any] = {"memory_limit": MEMORY_LIMIT, "temp_directory": str(spilled)}
    try:
        with duckdb.connect(config=config) as connection:
            connection.register("documents", pa.RecordBatchReader.from_batches(columns, with_keys()))
            found = connection.sql("SELECT text, id FROM documents ORDER BY key, place").to_arrow_reader(BATCH_ROWS)
            for batch in found:
                yield batch.cast(DOCUMENTS)
    except duckdb.Error as error:
        raise (failed[0] if failed else error) from None
    finally:
        shutil.rmtree(spilled, ignore_errors=True)


class WriterError(ModelError):
    """The package that writes tokens is not installed."""


class TokenizerError(ModelError):
    """A tokenizer cannot be used."""


class Tokenizer:
    """A tokenizer of the Hugging Face library, which ends every text with a token.

    A text that spells a special token is read as text, so that every document ends once; datatrove finds the token in
    it, and its files differ for such a text.

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
    def _loaded(self) -> Any:  # noqa: ANN401 - of `tokenizers`, without types
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
        return 2 if max(self._loaded.get_vocab().values()) < SMALL_VOCABULARY else 4

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of each text, on all cores."""
        return [found.ids for found in self._loaded.encode_batch_fast(texts)]


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


def write_tokens(documents: Path, tokenizer: Tokenizer, kind: str, folder: Path) -> int:
    """Write the documents of a Parquet file as tokens, in their order, to files of its name in a folder.

    Returned is the number of tokens, with one at the end of each document.
    """
    module, stem, token_bytes = load_module(kind), documents.stem, tokenizer.token_bytes
    others: tuple[None, ...] = ()
    if kind == "megatron":
        file = module.MegatronTokenizedFile(str(folder), stem, token_size=token_bytes)
    else:
        own_name = tokenizer.path.name  # its place is this machine's
        options = {"tokenizer_name_or_path": own_name, "save_final_metadata": True, "token_size": token_bytes}
        file, others = module.TokenizedFile(str(folder), f"{stem}.ds", **options), (None,)
    with VerifiedFile(documents) as texts:
        for batch in texts.iter_batches(ROW_GROUP, columns=["text"]):
            raise_if_stopped()
            for tokens in tokenizer.encode(batch["text"].to_pylist()):
                file.write(tokens, *others)
    file.close()
    return len(file)


def load_module(kind: str) -> Any:  # noqa: ANN401 - a module that is not always there
    """Return the module that writes a format of tokens.

    Raises
    ------
    WriterError
        If it is not installed.
    """
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")  # datatrove's log
    try:
        return import_module(MODULES[kind])
    except ImportError as error:
        raise WriterError(
            f"files of tokens need datatrove, received {error}: pip install '.[filters]' in a checkout, or the "
            "packages of the extra `filters` in pyproject.toml"
        ) from error
