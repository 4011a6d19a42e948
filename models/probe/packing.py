"""Turn documents into token ids, and token ids into the sequences that a language model is trained and measured on."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from fineweb_mask.models.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

END = "<|endoftext|>"
"""Stands between documents, and before each of them."""
IGNORED = -100  # a label without a loss, in transformers
TEXTS_AT_ONCE = 512


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> "Tokenizer":
    """Train a byte-level BPE tokenizer of `vocabulary` tokens, which can represent any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path) -> "Tokenizer":
    """Return the tokenizer of a `tokenizer.json`.

    Raises
    ------
    ModelError
        If the file is not one, or if the tokenizer has no token that ends a document.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more precise
        raise ModelError(f"the tokenizer {path.name} cannot be read: {error}") from error
    if tokenizer.token_to_id(END) is None:
        raise ModelError(f"the tokenizer {path.name} has no token {END}, which ends a document; use one that has it")
    return tokenizer


class PackedTokens(NamedTuple):
    """The tokens of many documents, one after the other, each with the end token after it."""

    ids: NDArray[np.unsignedinteger]  # (tokens,)
    ends: NDArray[np.int64]  # (documents,): where each document's tokens end

    @classmethod
    def of(cls, texts: Iterable[str], tokenizer: "Tokenizer") -> "PackedTokens":
        """Tokenise documents; a text that looks like the end token is read as text."""
        end = _end_of(tokenizer)
        dtype: type[np.unsignedinteger] = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
        parts: list[NDArray[np.unsignedinteger]] = [np.empty(0, dtype=dtype)]
        lengths: list[int] = []
        for encoded in _encoded(texts, tokenizer):
            parts.append(np.array([*encoded.ids, end], dtype=dtype))
            lengths.append(len(encoded.ids) + 1)
        return cls(np.concatenate(parts), np.cumsum(lengths, dtype=np.int64))

    def sequences(self, context: int, tokens: int, seed: int) -> "PackedSequences":
        """Return sequences of `context` tokens from the documents in a random order.

        Documents are repeated only if there are fewer tokens than asked for, and then each once more in another order.
        """
        random = np.random.default_rng(seed)
        starts = np.concatenate([[0], self.ends[:-1]])
        parts: list[NDArray[np.unsignedinteger]] = []
        missing = tokens
        while missing > 0:
            for document in random.permutation(len(self.ends)):
                part = self.ids[starts[document] : self.ends[document]][:missing]
                parts.append(part)
                missing -= len(part)
                if missing == 0:
                    break
        stream = np.concatenate(parts)
        whole = len(stream) // context * context
        return PackedSequences(stream[:whole].reshape(-1, context))


def _end_of(tokenizer: "Tokenizer") -> int:
    end = tokenizer.token_to_id(END)
    assert end is not None, "load_tokenizer refuses it"  # noqa: S101
    return end


def _encoded(texts: Iterable[str], tokenizer: "Tokenizer") -> Iterator["Encoding"]:
    tokenizer.encode_special_tokens = True  # a text that holds "<|endoftext|>" does not end there
    remaining = iter(texts)
    while batch := list(islice(remaining, TEXTS_AT_ONCE)):
        yield from tokenizer.encode_batch(batch, add_special_tokens=False)


class PackedSequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of equal length, (n, context), for training."""

    def __init__(self, ids: NDArray[np.unsignedinteger]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return one sequence; the model shifts the labels itself."""
        ids = torch.from_numpy(self.ids[index].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


class DocumentStarts(Dataset[dict[str, torch.Tensor]]):
    """The first tokens of held-out documents; the end token stands before each, and its own loss does not count.

    Attributes
    ----------
    document
        Document of every sequence, (n,); an empty document has no sequence.
    sizes
        Bytes of the measured part of every document, (documents,).
    """

    def __init__(self, texts: Sequence[str], tokenizer: "Tokenizer", context: int) -> None:
        end = _end_of(tokenizer)
        self.sizes = np.zeros(len(texts), dtype=np.int64)
        rows: list[tuple[int, list[int]]] = []
        for document, (text, encoded) in enumerate(zip(texts, _encoded(texts, tokenizer), strict=True)):
            ids = encoded.ids[: context - 1]
            if ids:
                measured = text if len(ids) == len(encoded.ids) else text[: encoded.offsets[len(ids) - 1][1]]
                self.sizes[document] = len(measured.encode())
                rows.append((document, [end, *ids]))
        rows.sort(key=lambda row: -len(row[1]))  # a batch has rows of similar length
        self.document = np.array([document for document, _ in rows], dtype=np.int64)
        self._rows = [ids for _, ids in rows]

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return one sequence and its labels."""
        ids = torch.tensor(self._rows[index])
        return {"input_ids": ids, "labels": torch.cat([torch.tensor([IGNORED]), ids[1:]])}


def padded(rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Stack sequences of different lengths; the padding has no loss, and comes after all tokens that have."""
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad([row["input_ids"] for row in rows], batch_first=True),
        "labels": pad([row["labels"] for row in rows], batch_first=True, padding_value=IGNORED),
    }
