"""Tokenise texts for a transformer, and run it on batches of them, longest first.

A batch has as many texts as fit a budget of tokens. It is padded to its longest text, so it costs rows times longest
text. Sorting a whole chunk of documents by length keeps the share of padding small.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.forward.tokens import TokenIds, first_tokens, read_as_text
from fineweb_mask.models.runtime.progress import track_by_size

if TYPE_CHECKING:  # takes seconds to import, and the built-in encoder does without
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)


@dataclass
class TokenBudget:
    """Maximum number of tokens per forward pass, padding included; halved when the device runs out of memory."""

    tokens: int


def for_each_batch(lengths: NDArray[np.int64], budget: TokenBudget, work: Callable[[NDArray[np.int64]], None]) -> None:
    """Call `work` with the row numbers of one batch after the other, longest texts first; `lengths` in tokens, (n,).

    A batch holds as many rows as fit the budget when padded to the longest, and at least one. If the device runs out of
    memory, the budget is halved, for later calls too, and the rows are tried again in smaller batches. A single row
    that does not fit raises torch.OutOfMemoryError.
    """
    remaining = np.argsort(-lengths, kind="stable")

    def batches() -> Iterator[NDArray[np.int64]]:
        while len(remaining):
            yield remaining[: max(1, budget.tokens // max(1, int(lengths[remaining[0]])))]

    tokens = int(lengths.sum())
    for rows in track_by_size("tokens", batches(), tokens, lambda rows: int(lengths[rows].sum()), part=(0, 1)):
        if _fits_into_memory(work, rows):
            remaining = remaining[len(rows) :]
            continue
        longest = max(1, int(lengths[rows[0]]))
        budget.tokens = max(1, min(budget.tokens, len(rows) * longest) // 2)
        logger.warning(
            "no device memory for %d texts of %d tokens: continuing with at most %d tokens per forward pass",
            len(rows),
            longest,
            budget.tokens,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _fits_into_memory(work: Callable[[NDArray[np.int64]], None], rows: NDArray[np.int64]) -> bool:
    try:
        work(rows)
    except torch.OutOfMemoryError:  # a separate function, because the traceback holds the tensors until it returns
        if len(rows) == 1:
            raise
        return False
    return True


class PaddedTokens:
    """Copy token ids to a device once, and pad each batch there with the id `padding`."""

    def __init__(self, tokens: TokenIds, padding: int, device: str) -> None:
        self._lengths = tokens.lengths
        self._device = device
        self._ids = self._to_device(np.append(tokens.ids, np.int32(padding)))
        self._starts = self._to_device(tokens.starts)
        self._device_lengths = self._to_device(tokens.lengths)

    def _to_device(self, values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(values)
        if self._device.startswith("cuda"):
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor

    def batch(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return the model's arguments for b rows: `input_ids` and, if any row is padded, `attention_mask`.

        Both are (b, longest) int64. The mask is left out where possible, because attention is faster without.
        """
        longest = max(1, int(self._lengths[rows].max()))
        index = self._to_device(rows)
        columns = torch.arange(longest, device=self._device)
        positions = self._starts[index][:, None] + columns  # in `_ids`
        if int(self._lengths[rows].min()) == longest:
            return {"input_ids": self._ids[positions].long()}
        within = columns < self._device_lengths[index][:, None]
        padding = len(self._ids) - 1
        return {"input_ids": self._ids[torch.where(within, positions, padding)].long(), "attention_mask": within.long()}


class ForwardPasses:
    """What runs a transformer on texts: its tokenizer, and a budget of tokens per forward pass.

    Parameters
    ----------
    tokenizer
        The model's, which is changed in place: it reads special tokens in a text as text, and cuts and pads nothing.
    max_tokens
        Maximum tokens read per text, special tokens included.
    batch_tokens
        Maximum tokens per forward pass, padding included; halved if the device runs out of memory.
    device
        Name of the device that the model is on.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", *, max_tokens: int, batch_tokens: int, device: str
    ) -> None:
        tokenizer.split_special_tokens = True  # else a call of it takes back what is set here
        self._tokenizer = tokenizer.backend_tokenizer
        read_as_text(self._tokenizer, tokenizer.all_special_tokens)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._padding = tokenizer.pad_token_id or 0
        self._device, self._budget = device, TokenBudget(batch_tokens)
        self._lock = threading.Lock()  # held while the model runs
        self._max_tokens = max_tokens

    def tokenise(self, texts: Sequence[str]) -> TokenIds:
        """Return the token ids that the model reads of each text; may be called from any thread."""
        return first_tokens(self._tokenizer, texts, self._max_tokens)

    def run(
        self, tokens: TokenIds, columns: int, forward: Callable[[dict[str, Tensor], NDArray[np.int64]], Tensor]
    ) -> Tensor:
        """Return what the model makes of each of n texts, in their order: (n, columns) float32 on the device.

        `forward` takes the arguments of the model for a batch of b texts and the number of tokens of each, (b,), and
        returns (b, columns).
        """
        with self._lock, torch.inference_mode():
            padded = PaddedTokens(tokens, self._padding, self._device)
            made = torch.zeros((len(tokens.lengths), columns), device=self._device)

            def add(rows: NDArray[np.int64]) -> None:
                found = forward(padded.batch(rows), tokens.lengths[rows])
                made[torch.from_numpy(rows).to(self._device)] = found.float()

            for_each_batch(tokens.lengths, self._budget, add)
            return made
