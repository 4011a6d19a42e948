"""Tokenise texts for a transformer, and run it on batches of them, longest first.

A batch has as many texts as fit a budget of tokens. It is padded to its longest text, so it costs rows times longest
text. Sorting a whole chunk of documents by length keeps the share of padding small.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
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


def for_each_batch(lengths: NDArray[np.int64], budget: int, work: Callable[[NDArray[np.int64]], None]) -> int:
    """Call `work` with the row numbers of one batch after the other, longest texts first; `lengths` in tokens, (n,).

    A batch holds as many rows as fit the budget when padded to the longest, and at least one. If the device runs out of
    memory, the budget is halved, and the rows are tried again in smaller batches; the last budget is returned. A single
    row that does not fit raises torch.OutOfMemoryError.
    """
    remaining = np.argsort(-lengths, kind="stable")

    def batches() -> Iterator[NDArray[np.int64]]:
        while len(remaining):
            yield remaining[: max(1, budget // max(1, int(lengths[remaining[0]])))]

    tokens = int(lengths.sum())
    for rows in track_by_size("tokens", batches(), tokens, lambda rows: int(lengths[rows].sum()), part=(0, 1)):
        if _fits_into_memory(work, rows):
            remaining = remaining[len(rows) :]
            continue
        longest = max(1, int(lengths[rows[0]]))
        budget = max(1, min(budget, len(rows) * longest) // 2)
        logger.warning(
            "no device memory for %d texts of %d tokens: continuing with at most %d tokens per forward pass",
            len(rows),
            longest,
            budget,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return budget


def _fits_into_memory(work: Callable[[NDArray[np.int64]], None], rows: NDArray[np.int64]) -> bool:
    try:
        work(rows)
    except torch.OutOfMemoryError:  # a separate function, because the traceback holds the tensors until it returns
        if len(rows) == 1:
            raise
        return False
    return True


def padded_batches(
    tokens: TokenIds, padding: int, device: str
) -> Callable[[NDArray[np.int64]], tuple[Tensor, dict[str, Tensor]]]:
    """Copy token ids to a device; return what pads b rows of them there with the id `padding`.

    It returns the rows on the device, (b,), and the model's arguments: `input_ids` and, if any row is padded,
    `attention_mask`. Both are (b, longest) int64. The mask is left out where possible, because attention is faster
    without.
    """

    def on_device(values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else tensor

    ids, starts = on_device(np.append(tokens.ids, np.int32(padding))), on_device(tokens.starts)
    lengths = on_device(tokens.lengths)

    def batch(rows: NDArray[np.int64]) -> tuple[Tensor, dict[str, Tensor]]:
        longest = max(1, int(tokens.lengths[rows].max()))
        index, columns = on_device(rows), torch.arange(longest, device=device)
        positions = starts[index][:, None] + columns  # in `ids`
        if int(tokens.lengths[rows].min()) == longest:
            return index, {"input_ids": ids[positions].long()}
        within = columns < lengths[index][:, None]
        padded = ids[torch.where(within, positions, len(ids) - 1)]
        return index, {"input_ids": padded.long(), "attention_mask": within.long()}

    return batch


class ForwardPasses:
    """A transformer on texts: its tokenizer, and a budget of tokens per forward pass.

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
        self.device, self._budget = device, batch_tokens
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
            batch = padded_batches(tokens, self._padding, self.device)
            made = torch.zeros((len(tokens.lengths), columns), device=self.device)

            def add(rows: NDArray[np.int64]) -> None:
                index, arguments = batch(rows)
                made[index] = forward(arguments, tokens.lengths[rows]).float()

            self._budget = for_each_batch(tokens.lengths, self._budget, add)
            return made
