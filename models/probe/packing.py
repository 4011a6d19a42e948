"""Cut the tokens of documents into the sequences that a language model is trained and measured on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset

from fineweb_mask.models.witness.tokens import PackedTokens, end_of, measured_starts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

IGNORED = -100  # a label without a loss, in transformers


class PackedSequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of `context` tokens, (n, context), from documents in a random order, for training.

    Documents are repeated only if there are fewer tokens than asked for, and then each once more in another order.
    """

    def __init__(self, packed: PackedTokens, context: int, tokens: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        rounds = -(-tokens // len(packed.ids))
        order = np.concatenate([random.permutation(len(packed.ends)) for _ in range(rounds)])
        self.ids = packed.take(order, tokens // context * context).ids.reshape(-1, context)

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
        starts, self.sizes = measured_starts(texts, tokenizer, context - 1)
        documents = np.split(starts.ids, starts.ends[:-1])
        rows = [(number, [end_of(tokenizer), *ids.tolist()]) for number, ids in enumerate(documents) if len(ids)]
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
