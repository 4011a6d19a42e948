"""Write documents in the formats of trainers: as tokens, or in the shards of libraries that stream texts.

Files of tokens are those of datatrove's writers (https://github.com/huggingface/datatrove, `pipeline/tokens`), byte for
byte. Every document ends with one token that marks its end; nothing is added before it.

- `megatron`: `.bin`, the tokens, and `.idx`, the length of each document; read by Megatron-LM, NeMo and GPT-NeoX.
- `nanotron`: `.ds`, the tokens, `.ds.index`, where each document ends, and `.ds.metadata`.

Shards are written by the libraries that read them:

- `mds`: MosaicML's streaming, https://docs.mosaicml.com/projects/streaming;
- `litdata`: https://github.com/Lightning-AI/litData.
"""

import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.inference.model_files import model_file
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.training_files.order import ROW_GROUP

COMMON_END = "<|endoftext|>"
SMALL_VOCABULARY = 2**16
"""Tokens that two bytes can number."""
PACKAGES = {
    "megatron": ("datatrove.pipeline.tokens.megatron_tokenizer", "datatrove"),
    "nanotron": ("datatrove.pipeline.tokens.tokenizer", "datatrove"),
    "mds": ("streaming", "mosaicml-streaming"),
    "litdata": ("litdata.streaming.writer", "litdata"),
}
"""The module that writes each format, and the package that it is in."""


class WriterError(ModelError):
    """A format's own library is not installed."""


class TokenizerError(ModelError):
    """A tokenizer cannot be used."""


class Tokenizer:
    """A tokenizer of the Hugging Face library, which ends every text with a token.

    Parameters
    ----------
    settings
        The name of the tokenizer, and of the token at the end.

    Raises
    ------
    TokenizerError
        When it is used, if the file is not a tokenizer, or lacks the token.
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
        return _load(self.path, self.path.stat().st_mtime_ns, self._name, self.end_token)

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of a token: 2, or 4 for a vocabulary of more than 65,536."""
        return 2 if self._loaded.get_vocab_size() <= SMALL_VOCABULARY else 4

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of each text, on all cores."""
        return [found.ids for found in self._loaded.encode_batch_fast(texts)]


@lru_cache(maxsize=2)  # one that is loaded again for each file leaves its cache of words behind each time
def _load(file: Path, _modified: int, name: str, end_token: str) -> Any:  # noqa: ANN401
    from tokenizers import Tokenizer as Loaded
    from tokenizers.processors import TemplateProcessing

    try:
        loaded = Loaded.from_file(str(file))
    except Exception as error:  # the library raises no other
        raise TokenizerError(f"tokenizer: {name} must be a tokenizer.json: {error}") from error
    if (end := loaded.token_to_id(end_token)) is None:
        raise TokenizerError(f"end_token: {name} has no token {end_token!r}: set end_token to the one that ends a text")
    loaded.post_processor = TemplateProcessing(single="$A <end>", pair=None, special_tokens=[("<end>", end)])
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


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
    package, stem, token_bytes = load_package(kind), documents.stem, tokenizer.token_bytes
    others: tuple[None, ...] = ()
    if kind == "megatron":
        file = package.MegatronTokenizedFile(str(folder), stem, token_size=token_bytes)
    else:
        own_name = tokenizer.path.name  # its place is this machine's
        options = {"tokenizer_name_or_path": own_name, "save_final_metadata": True, "token_size": token_bytes}
        file, others = package.TokenizedFile(str(folder), f"{stem}.ds", **options), (None,)
    for batch in _batches([documents]):
        for tokens in tokenizer.encode(batch["text"].to_pylist()):
            file.write(tokens, *others)
    file.close()
    return len(file)


def _batches(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for path in files:
        with VerifiedFile(path) as file:
            for batch in file.iter_batches(ROW_GROUP):
                raise_if_stopped()
                yield batch


def load_package(kind: str) -> Any:  # noqa: ANN401 - a module that is not always there
    """Return the module that writes a format.

    Raises
    ------
    WriterError
        If it is not installed.
    """
    module, package = PACKAGES[kind]
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")  # datatrove's log
    try:
        return import_module(module)
    except ImportError as error:
        if package == "datatrove":
            raise WriterError(
                f"files of tokens need datatrove, received {error}: pip install '.[filters]' in a checkout, or the "
                "packages of the extra `filters` in pyproject.toml"
            ) from error
        raise WriterError(
            f"the format {kind} needs {package}, received {error}: pip install '.[{kind}]' in a checkout, or that "
            "package"
        ) from error


def write_shards(files: Sequence[Path], settings: ExportSettings, folder: Path) -> None:
    """Write the documents of Parquet files as shards that a library streams."""
    package = load_package(settings.format)
    documents = (document for batch in _batches(files) for document in batch.to_pylist())
    if settings.format == "mds":
        columns = {"text": "str", "id": "str"}
        with package.MDSWriter(out=str(folder), columns=columns, size_limit=settings.file_size, hashes=[]) as mds:
            for document in documents:
                mds.write(document)
        return
    folder.mkdir(parents=True, exist_ok=True)
    chunks = package.BinaryWriter(str(folder), chunk_bytes=settings.file_size)
    for index, document in enumerate(documents):
        chunks.add_item(index, document)
    chunks.done()
    chunks.merge()
