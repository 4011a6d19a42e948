"""Fixtures that several folders share."""

import os
from collections.abc import Callable, Iterable
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
    ) -> Path:
        import torch
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer
        from tokenizers.processors import TemplateProcessing
        from tokenizers.trainers import WordPieceTrainer
        from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = BertNormalizer()
        tokenizer.pre_tokenizer = BertPreTokenizer()
        trainer = WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
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
            initializer_range=0.5,  # scores and vectors that differ from text to text
        )
        BertForSequenceClassification(config).save_pretrained(folder)
        names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **names).save_pretrained(folder)
        return folder

    return save
