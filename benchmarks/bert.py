"""Save BERT models with random weights and a tokenizer trained on the texts: real sizes without a download."""

from collections.abc import Iterable
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def save_tokenizer(folder: Path, texts: Iterable[str]) -> int:
    """Train and save a WordPiece tokenizer; return the size of its vocabulary, at most BERT's 30,522."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    special = list(SPECIAL.values())
    tokenizer.train_from_iterator(
        texts, WordPieceTrainer(vocab_size=30_522, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **SPECIAL).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def config(vocabulary: int, layers: int, hidden: int, **more: int) -> BertConfig:
    """Return the configuration of a BERT, and seed the weights; BERT-base has 12 layers of 768."""
    torch.manual_seed(0)
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64),
        intermediate_size=4 * hidden,
        **more,
    )


def save_classifier(folder: Path, texts: Iterable[str], layers: int, hidden: int) -> None:
    """Save a sequence classifier with one output."""
    vocabulary = save_tokenizer(folder, texts)
    BertForSequenceClassification(config(vocabulary, layers, hidden, num_labels=1)).save_pretrained(folder)


def save_encoder(folder: Path, texts: Iterable[str], layers: int, hidden: int) -> None:
    """Save a sentence-transformers model with mean pooling."""
    parts = folder / "parts"
    vocabulary = save_tokenizer(parts, texts)
    BertModel(config(vocabulary, layers, hidden)).save_pretrained(parts)
    modules = [Transformer(str(parts)), Pooling(hidden, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"), create_model_card=False)
