"""Score texts by how likely a causal language model finds them.

Mean losses over the largest ones are Min-K% (Shi et al. 2023, arXiv 2310.16789); buckets of perplexity are CCNet's
(Wenzek et al. 2019, arXiv 1911.00359), which takes them from percentiles of a corpus in each language.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from fineweb_mask.models.forward.batches import PaddedTokens, for_each_batch
from fineweb_mask.models.forward.tokens import first_tokens
from fineweb_mask.models.quality.transformer import TransformerScorer
from fineweb_mask.models.settings.quality import PerplexityScorerSettings

BATCH_TOKENS = 4_096
"""Tokens per forward pass, padding included; each takes memory for the whole vocabulary."""
USUAL_TOKENS = 512
"""Tokens read per document unless the settings say how many."""


class PerplexityScorer(TransformerScorer):
    """Score a text with minus the mean loss of its tokens, in nats, or with its bucket of perplexity.

    The first token is read, and not predicted. A text of fewer than two tokens gets the loss of a uniform guess, the
    log of the vocabulary's size.

    Raises
    ------
    ModelError
        If the folder holds no causal language model, or no fast tokenizer.
    SettingsError
        If `max_tokens` is more than the model reads.
    """

    def __init__(
        self,
        settings: PerplexityScorerSettings,
        model_path: str,
        device: str = "auto",
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self.settings, name = settings, "causal language model"
        super().__init__(settings, model_path, AutoModelForCausalLM, name, device, batch_tokens, USUAL_TOKENS)

    def score(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the score of each text, (n,); likelier texts have higher ones."""
        losses = self.losses(texts)
        if self.settings.buckets is None:
            return -losses
        with np.errstate(over="ignore"):
            above = np.exp(losses.astype(np.float64))[:, None] < np.array(self.settings.buckets)
        buckets: NDArray[np.float32] = above.sum(1).astype(np.float32)
        return buckets

    def losses(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the mean loss of each text in nats, over the settings' share of its tokens: (n,)."""
        tokens = first_tokens(self._tokenizer, texts, self.max_tokens)
        found = np.full(len(texts), np.log(self._model.config.vocab_size), dtype=np.float32)
        with self._lock, torch.inference_mode():
            padded = PaddedTokens(tokens, self._padding, self.device)

            def forward(rows: NDArray[np.int64]) -> None:
                batch = padded.batch(rows)
                logits = self._model(**batch).logits
                for row, own, ids in zip(rows.tolist(), logits, batch["input_ids"], strict=True):
                    length = int(tokens.lengths[row]) - 1
                    if length > 0:
                        losses = cross_entropy(own[:length].float(), ids[1 : length + 1], reduction="none")
                        counted = max(1, round(self.settings.share * length))
                        found[row] = float(losses.topk(counted).values.mean())

            for_each_batch(tokens.lengths, self._budget, forward)
        return found
