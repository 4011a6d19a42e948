"""Small models of random weights as sentence-transformers saves them, and what it makes of texts."""

import shutil

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.settings import EmbeddingSettings

WORDS = "piano sonata melody violin concert harmony football goal match striker league stadium the of and".split()
TEXTS = [
    "piano",
    "football goal match",
    "",
    " \n\t\u2028 ",
    "The harmony of Violin & piano, the league of strikers; goal 1987.",
    "日本語のテキスト и немного русского, café naïve ﬁ ½ 👩‍👩‍👧 \u202e abc",
    "nul \x00 and control \x01\x7f",
    "[CLS] [SEP] [PAD] <s> </s> piano",
    "a" * 3_000,
    " ".join(WORDS * 12),
    "piano sonata " * 2_000,
]
OF_BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
OF_ROBERTA = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
SPECIAL = {"bert": OF_BERT, "modernbert": OF_BERT, "roberta": OF_ROBERTA}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def make_tokenizer(kind, positions, texts=TEXTS):
    from transformers import PreTrainedTokenizerFast

    special = list(SPECIAL[kind].values())
    if kind == "bert":
        # Not trained: a trainer orders pieces of equal count as it likes, and the model would differ from run to run.
        words = {word for text in texts for word in text.lower().split() if len(word) < 100}
        letters = sorted(set("".join(words)))
        pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words.difference(letters))]
        tokenizer = Tokenizer(WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    else:
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        alphabet = ByteLevel.alphabet()
        trainer = BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
    first, last = ("<s>", "</s>") if kind == "roberta" else ("[CLS]", "[SEP]")
    ends = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = TemplateProcessing(single=f"{first} $A {last}", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **SPECIAL[kind])


def save_classifier(folder, texts, *, positions=64, labels=1):
    """Save a BERT with so many outputs, laid out as FineWeb-Edu's classifier, which knows the words of the texts."""
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = make_tokenizer("bert", positions, list(texts))
    torch.manual_seed(0)
    config = BertConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        max_position_embeddings=positions,
        num_labels=labels,
        initializer_range=0.5,  # scores and vectors differ from text to text
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_model(folder, kind="bert", pooling="mean", positions=64, normalize=True, prompts=None, more=(), **options):
    """Save an encoder of 32 dimensions, with a layer of the shape `more` after the pooling, whose are the `options`."""
    import transformers as models
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    tokenizer = make_tokenizer(kind, positions)
    torch.manual_seed(0)
    spread = {"vocab_size": len(tokenizer), "initializer_range": 0.5}
    if kind == "bert":
        model = models.BertModel(models.BertConfig(**SIZES, **spread, max_position_embeddings=positions))
    elif kind == "roberta":  # positions begin after the padding token's id
        pad = tokenizer.pad_token_id
        config = models.RobertaConfig(**SIZES, **spread, max_position_embeddings=positions + pad + 1, pad_token_id=pad)
        model = models.RobertaModel(config)
    else:
        ends = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        config = models.ModernBertConfig(
            **SIZES, **spread, **ends, max_position_embeddings=positions, local_attention=16
        )
        model = models.ModernBertModel(config)
    parts = folder.with_name(f"{folder.name}-parts")
    model.save_pretrained(parts)
    tokenizer.save_pretrained(parts)
    modules = [Transformer(str(parts)), Pooling(32, pooling, **options), *([Dense(*more)] if more else [])]
    if normalize:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder), create_model_card=False)
    shutil.rmtree(parts)
    return folder


def of_sentence_transformers(static):
    """Return a model of one vector per token as sentence-transformers runs it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    module = StaticEmbedding(static.tokenizer, embedding_weights=static.weights)
    return SentenceTransformer(modules=[module], device="cpu")


def load(folder, *, compute=torch.float32, batch_tokens=None, **settings):
    """Load an encoder that computes in single precision, if nothing else is said."""
    return load_encoder(str(folder), EmbeddingSettings(**settings), "cpu", compute=compute, batch_tokens=batch_tokens)


def reference(folder, texts, **options):
    """Return the vectors of sentence-transformers itself, for which a text that spells a special token is text, too."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    is_plain = isinstance(model.tokenizer, Tokenizer)
    setattr(model.tokenizer, "encode_special_tokens" if is_plain else "split_special_tokens", True)
    vectors = model.encode(texts, normalize_embeddings=True, **options)
    assert isinstance(vectors, np.ndarray)
    return vectors
