"""Forward passes over texts of many lengths: longest first, as many at a time as a budget of tokens holds.

A batch is padded to its longest text, so what it costs is rows times longest, not rows. Sorted by length over a whole
chunk of documents, little of it is padding.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.forward.tokens import TokenIds
from fineweb_mask.models.runtime.progress import track_by_size

logger = logging.getLogger(__name__)


class TokenBudget:
    """How many tokens a forward pass takes once padded; halved for good where the device has no memory for them."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def halve(self, used: int) -> None:
        """Take half of what was too much, `used` tokens, from now on."""
        self.tokens = max(1, min(self.tokens, used) // 2)


def for_each_batch(
    lengths: NDArray[np.int64],  # (n,)
    budget: TokenBudget,
    work: Callable[[NDArray[np.int64]], None],
) -> None:
    """Call `work` with the rows of one forward pass after the other, longest first.

    A batch holds as many rows as the budget has room for once they are padded to the longest, and at least one. Where
    the device runs out of memory, the budget is halved, for later calls as well, and the same rows are tried again.

    Raises
    ------
    torch.OutOfMemoryError
        If there is no memory for a single row.
    """
    left = np.argsort(-lengths, kind="stable")

    def batches() -> Iterator[NDArray[np.int64]]:
        while len(left):
            yield left[: max(1, budget.tokens // max(1, int(lengths[left[0]])))]

    tokens = int(lengths.sum())
    for rows in track_by_size("tokens", batches(), tokens, lambda rows: int(lengths[rows].sum()), part=(0, 1)):
        if _has_memory_for(work, rows):
            left = left[len(rows) :]
            continue
        longest = max(1, int(lengths[rows[0]]))
        budget.halve(len(rows) * longest)
        logger.warning(
            "no device memory for %d texts of %d tokens: from now on %d tokens to a forward pass",
            len(rows),
            longest,
            budget.tokens,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _has_memory_for(work: Callable[[NDArray[np.int64]], None], rows: NDArray[np.int64]) -> bool:
    try:
        work(rows)
    except torch.OutOfMemoryError:  # its traceback holds the batch's tensors until this function returns
        if len(rows) == 1:
            raise
        return False
    return True


class PaddedTokens:
    """Token ids on the device: copied there once, padded there batch by batch.

    Parameters
    ----------
    tokens
        Token ids of the texts.
    padding
        Id of the padding token.
    device
        Where the batches are wanted.
    """

    def __init__(self, tokens: TokenIds, padding: int, device: str) -> None:
        self._lengths = tokens.lengths
        self._device = device
        self._ids = self._copied(np.append(tokens.ids, np.int32(padding)))
        self._starts = self._copied(tokens.starts)
        self._device_lengths = self._copied(tokens.lengths)

    def _copied(self, values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(values)
        if self._device.startswith("cuda"):
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor

    def batch(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return `input_ids` of the rows, (b, longest) int64, and `attention_mask` of that shape if any is padded.

        Attention without a mask is the faster kernel.
        """
        longest = max(1, int(self._lengths[rows].max()))
        index = self._copied(rows)
        positions = torch.arange(longest, device=self._device)
        places = self._starts[index][:, None] + positions
        if int(self._lengths[rows].min()) == longest:
            return {"input_ids": self._ids[places].long()}
        within = positions < self._device_lengths[index][:, None]
        padding = len(self._ids) - 1
        return {"input_ids": self._ids[torch.where(within, places, padding)].long(), "attention_mask": within.long()}
