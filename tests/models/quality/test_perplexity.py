"""The losses of a causal language model as scores: those of transformers itself, one text at a time."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.settings.quality import PerplexityScorerSettings
from fineweb_mask.models.witness.tokens import END, train_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TEXTS = [
    "a piano sonata in three movements",
    "the striker scored a goal",
    f"{END}the goal {END}",  # text, as all else
    "",
    "the goal of the match was scored by the piano in a stadium of three movements " * 4,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model as transformers saves it."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("causal") / "model"
    config = LlamaConfig(
        **SMALL, vocab_size=320, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.06,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(str(folder))
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END)
    PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(TEXTS * 5, 300), **special).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()

    def losses(text, most=512):
        ids = tokenizer(text, return_tensors="pt", split_special_tokens=True).input_ids[:, :most]
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0].double()
        return torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none").numpy()

    return losses


def load(folder, *, batch_tokens=None, **settings):
    from fineweb_mask.models.quality.transformer import PerplexityScorer  # it imports much

    settings = PerplexityScorerSettings(model=str(folder), **settings)
    return PerplexityScorer(settings, str(folder), device="cpu", batch_tokens=batch_tokens)


def test_a_score_is_minus_the_mean_loss_of_a_text_by_itself(folder, reference):
    scorer = load(folder, batch_tokens=64)
    scores = scorer.score(TEXTS)
    assert scores.dtype == np.float32
    for text, score in zip(TEXTS, scores, strict=True):
        own = reference(text) if text else np.empty(0)
        assert score == pytest.approx(-own.mean() if len(own) else -np.log(scorer._model.config.vocab_size), rel=1e-4)
    np.testing.assert_allclose(scores, load(folder).score(TEXTS), rtol=1e-5)
    [first_tokens] = load(folder, max_tokens=8).score(TEXTS[-1:])
    assert first_tokens == pytest.approx(-reference(TEXTS[-1], 8).mean(), rel=1e-4)


def test_a_folder_without_a_language_model_is_refused(tmp_path, folder):
    with pytest.raises(ModelError, match="has no safetensors"):
        load(tmp_path)
    with pytest.raises(SettingsError, match="max_tokens is 1000000"):
        load(folder, max_tokens=1_000_000)
