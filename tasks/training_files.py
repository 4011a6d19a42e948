"""Write the documents of a dataset as training files: in the order of training, as texts or tokens.

All are in random order, divided evenly among files, in two passes: the documents are dealt out to the files as cards
are, spilled where they do not fit into memory, and then those of each file are shuffled.

Files of tokens are those of datatrove's writers (https://github.com/huggingface/datatrove, `pipeline/tokens`), byte for
byte. Every document ends with one token that marks its end; nothing is added before it.

- `megatron`: `.bin`, the tokens, and `.idx`, the length of each document; read by Megatron-LM, NeMo and GPT-NeoX.
- `nanotron`: `.ds`, the tokens, `.ds.index`, where each document ends, and `.ds.metadata`.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.runtime.progress import track, track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.verify import DATA_SUFFIX, Dataset, VerifyError
from fineweb_mask.tasks.dataset.writers import by_value
from fineweb_mask.tasks.inference.model_files import model_file
from fineweb_mask.tasks.storage.atomic import atomic_folder
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.manifest import Manifest

DOCUMENTS = pa.schema([pa.field("text", pa.string(), nullable=False), pa.field("id", pa.string(), nullable=False)])
LARGE = pa.schema([pa.field(field.name, pa.large_string(), nullable=False) for field in DOCUMENTS])
"""The same for all documents of a file, whose texts may have more than 2 GiB."""
ROW_GROUP = 1_000
"""Documents of a row group: trainers read one at a time, and skip to another when they resume."""
LEAST_FILES = 2
"""Some trainers take the last file for validation, the others for training."""
BATCH_ROWS = 5_000
PENDING_BYTES = 512 * 2**20
COMMON_END = "<|endoftext|>"
SMALL_VOCABULARY = 2**16
"""Tokens that two bytes can number."""
MODULES = {
    "megatron": "datatrove.pipeline.tokens.megatron_tokenizer",
    "nanotron": "datatrove.pipeline.tokens.tokenizer",
}
"""The module that writes each format of tokens."""


def write_documents(
    dataset: Dataset, manifest: Manifest, settings: ExportSettings, folder: Path, part: tuple[float, float] = (0, 1)
) -> None:
    """Write the texts and ids of a dataset to Parquet files in a folder, which appears when all are written.

    Raises
    ------
    VerifyError
        If the dataset does not hold as many documents as its record says.
    DamagedFileError
        If one of its files is damaged.
    """
    rows = int(manifest.details["rows"])
    size = sum(file.bytes for name, file in manifest.files.items() if name.endswith(DATA_SUFFIX))
    files = min(max(LEAST_FILES, -(-size // settings.file_size)), rows)
    batches = track_by_size(
        "documents dealt out", _read(dataset, manifest), rows, lambda batch: batch.num_rows, part=(part[0], part[1] / 2)
    )
    with atomic_folder(folder) as new, TemporaryDirectory(dir=folder.parent) as spill:
        dealt = _Dealt(Path(spill))
        for batch, numbers in _numbered(batches, rows, files, settings):
            dealt.add(batch, numbers)
        if dealt.rows != rows:
            raise VerifyError(
                f"{dataset.url} must hold the {rows:,} documents of its record, it holds others: verify it"
            )
        for number in track("files ordered", range(files), part=(part[1] / 2, part[1])):
            documents = dealt.documents(number)
            order = np.arange(documents.num_rows)
            if settings.shuffle:
                np.random.default_rng([settings.seed, number]).shuffle(order)
            with pq.ParquetWriter(
                new / f"{number:05d}.parquet",
                DOCUMENTS,
                compression="zstd",
                write_page_checksum=True,
                use_dictionary=False,
            ) as file:
                for first in range(0, len(order), ROW_GROUP):
                    file.write_table(documents.take(order[first : first + ROW_GROUP]).cast(DOCUMENTS))


def _read(dataset: Dataset, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    for name in sorted(name for name in manifest.files if name.endswith(DATA_SUFFIX)):
        with dataset.open(name) as stream, VerifiedFile(stream, name) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=DOCUMENTS.names):
                yield batch.select(DOCUMENTS.names).cast(LARGE)


def _numbered(
    batches: Iterable[pa.RecordBatch], rows: int, files: int, settings: ExportSettings
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
    """Yield batches with the number of each document's file, (n,); the files' numbers of documents differ by 1 at most.

    In random order, each next `files` documents are dealt out to one file each, as cards are.
    """
    random, first = np.random.default_rng(settings.seed), 0
    cards = chain.from_iterable(random.permutation(files) for _ in count())
    for batch in batches:
        n = batch.num_rows
        if settings.shuffle:
            yield batch, np.fromiter(islice(cards, n), np.int64, n)
        else:
            yield batch, np.minimum(np.arange(first, first + n) * files // max(rows, 1), files - 1)
        first += n


class _Dealt:
    """The documents of each file, in the order of the dataset; more than `PENDING_BYTES` are spilled to a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: dict[int, list[pa.Table]] = defaultdict(list)
        self._pending_bytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch, numbers: NDArray[np.int64]) -> None:
        """Add documents, each to the file of its number."""
        for number, documents in by_value(pa.table(batch), pa.chunked_array([numbers])):
            self._pending[number].append(documents)
        self.rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_bytes > PENDING_BYTES:
            for number, tables in self._pending.items():
                with pa.OSFile(str(self._folder / str(number)), "ab") as file, pa.ipc.new_stream(file, LARGE) as stream:
                    stream.write_table(pa.concat_tables(tables))
            self._pending.clear()
            self._pending_bytes = 0

    def documents(self, number: int) -> pa.Table:
        """Return the documents of a file, once."""
        found, path = self._pending.pop(number, []), self._folder / str(number)
        if path.exists():
            with pa.OSFile(str(path)) as file:
                spilled = []
                while file.tell() < path.stat().st_size:
                    spilled.append(pa.ipc.open_stream(file).read_all())
            found = [*spilled, *found]
            path.unlink()
        return pa.concat_tables(found).combine_chunks()


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


def write_tokens(documents: Path, tokenizer: Tokenizer, kind: str, folder: Path) -> None:
    """Write the documents of a Parquet file as tokens, in their order, to files of its name in a folder."""
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
