"""The transformer encoder: equal to `SentenceTransformer.encode` row by row, for several architectures."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from fineweb_mask.models.embedding.encoder import EncoderError
from fineweb_mask.models.embedding.load import WholeModelEncoder, load_encoder
from fineweb_mask.models.embedding.transformer import TransformerEncoder
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
    " ".join(reversed(WORDS * 3)),
    "\n".join(WORDS),
    "piano sonata " * 7_700,  # 100,100 characters
]
SPECIAL = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
    "modernbert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>"],
}
NAMES = {
    "bert": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    "modernbert": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    "roberta": {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


pytestmark = pytest.mark.usefixtures("one_thread")


def make_tokenizer(kind, positions):
    special = SPECIAL[kind]
    if kind == "bert":
        tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
        trainer = WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    else:
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        alphabet = ByteLevel.alphabet()
        trainer = BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    first, last = ("<s>", "</s>") if kind == "roberta" else ("[CLS]", "[SEP]")
    ends = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = TemplateProcessing(single=f"{first} $A {last}", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **NAMES[kind])


def save_model(folder, kind="bert", pooling="mean", positions=64, normalize=True, prompts=None, more=(), **options):
    tokenizer = make_tokenizer(kind, positions)
    torch.manual_seed(0)
    spread = {"vocab_size": len(tokenizer), "initializer_range": 0.5}
    if kind == "bert":
        model = BertModel(BertConfig(**SIZES, **spread, max_position_embeddings=positions))
    elif kind == "roberta":  # positions begin after the padding token's id
        pad = tokenizer.pad_token_id
        config = RobertaConfig(**SIZES, **spread, max_position_embeddings=positions + pad + 1, pad_token_id=pad)
        model = RobertaModel(config)
    else:
        ends = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        config = ModernBertConfig(**SIZES, **spread, **ends, max_position_embeddings=positions, local_attention=16)
        model = ModernBertModel(config)
    parts = folder.with_name(f"{folder.name}-parts")
    model.save_pretrained(parts)
    tokenizer.save_pretrained(parts)
    modules = [Transformer(str(parts)), Pooling(32, pooling, **options), *more]
    if normalize:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder), create_model_card=False)
    shutil.rmtree(parts)
    return folder


# As the models on the hub are laid out: architecture, pooling, tokens, prompts.
RECIPES = {
    "intfloat/e5-base-v2": partial(save_model, kind="bert", pooling="mean"),
    "Snowflake/snowflake-arctic-embed-m": partial(
        save_model, kind="bert", pooling="cls", prompts={"query": "Represent this sentence: "}
    ),
    "BAAI/bge-base-en-v1.5": partial(save_model, kind="bert", pooling="cls"),
    "Alibaba-NLP/gte-modernbert-base": partial(
        save_model, kind="modernbert", pooling="cls", positions=256, normalize=False
    ),
}
OTHERS = {
    "roberta": partial(save_model, kind="roberta"),
    "max pooling": partial(save_model, pooling="max", normalize=False),
    "weighted mean": partial(save_model, pooling="weightedmean", normalize=False),
    "last token": partial(save_model, pooling="lasttoken"),
    "mean and cls": partial(save_model, pooling=("mean", "cls")),
    "dense": lambda folder: save_model(folder, more=[Dense(32, 24)]),
}


@pytest.fixture(scope="module", params=[*RECIPES, *OTHERS])
def folder(request, tmp_path_factory):
    return (RECIPES | OTHERS)[request.param](tmp_path_factory.mktemp("model") / "model")


def load(folder, *, compute="float32", batch_tokens=None, **settings):
    settings = EmbeddingSettings(**{"precision": "float32"} | settings)
    return load_encoder(str(folder), settings, "cpu", compute=compute, batch_tokens=batch_tokens)


def reference(folder, texts, **options):
    model = SentenceTransformer(str(folder), device="cpu")
    model.tokenizer.split_special_tokens = True  # a text that spells a special token is text
    vectors = model.encode(texts, normalize_embeddings=True, **options)
    assert isinstance(vectors, np.ndarray)
    return vectors


def test_equal_to_sentence_transformers(folder):
    encoder = load(folder, batch_tokens=150)
    assert isinstance(encoder, TransformerEncoder)
    encoded = encoder.encode(TEXTS)
    assert not encoded.bad.any()
    np.testing.assert_allclose(encoded.vectors, reference(folder, TEXTS), atol=2e-5)
    assert encoder.dimensions == encoded.vectors.shape[1]
    distinct = np.unique(encoded.vectors.round(4), axis=0)
    assert len(distinct) >= len(TEXTS) - 3  # all but the two blank ones, and unknown letters


def test_special_tokens_are_only_those_that_the_tokenizer_adds(folder):
    tokenizer = SentenceTransformer(str(folder), device="cpu").tokenizer
    control = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    text = " a ".join(tokenizer.all_special_tokens)
    found = load(folder, prompt="passage: ").tokenise([text, f"piano {text}"]).tolist()
    assert all(len(control & {*ids}) == 2 and not control & {*ids[1:-1]} for ids in found)


def test_equal_with_a_prompt(folder):
    encoder = load(folder, prompt="passage: ")
    np.testing.assert_allclose(encoder.encode(TEXTS).vectors, reference(folder, TEXTS, prompt="passage: "), atol=2e-5)
    assert np.abs(encoder.encode(TEXTS).vectors - load(folder, prompt="").encode(TEXTS).vectors).max() > 0.01


def test_a_real_model(minilm):
    texts = [text[:2_000] for text in TEXTS] + [TEXTS[-1]]
    encoded = load(minilm).encode(texts)
    np.testing.assert_allclose(encoded.vectors, reference(minilm, texts), atol=1e-5)
    assert encoded.vectors.shape[1] == 384


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
def test_half_precision_keeps_the_direction(minilm, compute):
    texts = [text[:2_000] for text in TEXTS]
    vectors = load(minilm, compute=compute).encode(texts).vectors
    assert (vectors * reference(minilm, texts)).sum(axis=1).min() >= 0.999
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


def test_weights_saved_in_half_precision_can_compute_in_single(tmp_path):
    folder = save_model(tmp_path / "model")
    model = SentenceTransformer(str(folder), device="cpu").half()
    model.save(str(tmp_path / "half"), create_model_card=False)
    model.float().save(str(tmp_path / "rounded"), create_model_card=False)
    for settings in ({}, {"compute": "bfloat16"}):
        half, rounded = (load(tmp_path / name, **settings).encode(TEXTS) for name in ("half", "rounded"))
        np.testing.assert_array_equal(half.vectors, rounded.vectors)


def test_stored_precision_is_what_leaves_the_encoder(minilm):
    exact, half = (load(minilm, precision=precision).encode(["piano", "goal"]) for precision in ("float32", "float16"))
    assert (exact.vectors.dtype, half.vectors.dtype) == (np.float32, np.float16)
    np.testing.assert_array_equal(half.vectors, exact.vectors.astype(np.float16))


def test_the_prompt_that_a_model_leaves_out_of_its_mean(tmp_path):
    folder = save_model(tmp_path / "instructor", include_prompt=False)
    texts = [text for text in TEXTS if text.strip()]
    expected = reference(folder, texts, prompt="passage: ")
    np.testing.assert_allclose(load(folder, prompt="passage: ").encode(texts).vectors, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("prompts", "used"),
    [
        ({"query": "find: ", "document": "passage: "}, "passage: "),
        ({"query": "find: ", "passage": "passage: "}, "passage: "),
        ({"query": "find: "}, ""),
        ({}, ""),
    ],
)
def test_without_a_prompt_the_model_s_own_for_documents_is_used(tmp_path, prompts, used):
    folder = save_model(tmp_path / "model", prompts=prompts)
    np.testing.assert_allclose(load(folder).encode(TEXTS).vectors, reference(folder, TEXTS, prompt=used), atol=2e-5)
    np.testing.assert_allclose(
        load(folder, prompt="").encode(TEXTS).vectors, reference(folder, TEXTS, prompt=""), atol=2e-5
    )


def test_a_model_s_default_prompt_is_used(tmp_path):
    folder = save_model(tmp_path / "model", prompts={"own": "league "})
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"default_prompt_name": "own"}))
    np.testing.assert_allclose(load(folder).encode(TEXTS).vectors, reference(folder, TEXTS), atol=2e-5)
    assert np.abs(load(folder).encode(TEXTS).vectors - load(folder, prompt="").encode(TEXTS).vectors).max() > 0.01


def test_vectors_truncated_by_the_model_s_own_setting(tmp_path):
    folder = save_model(tmp_path / "matryoshka", normalize=False)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": 8}))
    encoder = load(folder)
    assert encoder.dimensions == 8
    vectors = reference(folder, TEXTS)
    assert vectors.shape[1] == 8
    np.testing.assert_allclose(encoder.encode(TEXTS).vectors, vectors, atol=2e-5)


def test_tokens_read_are_those_of_the_settings(minilm):
    text = " ".join(WORDS * 60)
    model = SentenceTransformer(str(minilm), device="cpu")
    for limit in (16, 512):
        model.max_seq_length = limit
        expected = model.encode([text], normalize_embeddings=True)
        np.testing.assert_allclose(load(minilm, max_tokens=limit).encode([text]).vectors, expected, atol=1e-5)


def test_more_tokens_than_the_model_has_positions_for_are_an_error(tmp_path, minilm):
    with pytest.raises(EncoderError, match=r"embedding\.max_tokens: the model reads 512 tokens"):
        load(minilm, max_tokens=513)
    roberta = save_model(tmp_path / "roberta", kind="roberta")
    load(roberta, max_tokens=64).encode([" ".join(WORDS * 60)])
    with pytest.raises(EncoderError, match="the model reads 64 tokens"):
        load(roberta, max_tokens=65)


class SmallDevice(torch.nn.Module):
    """Raise OutOfMemoryError, as a GPU does, for more than `tokens` tokens at a time."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens = tokens
        self.passes = []

    def forward(self, features):
        self.passes.append(features["input_ids"].numel())
        if features["input_ids"].numel() > self.tokens:
            raise torch.OutOfMemoryError("simulated")
        return features


def test_out_of_memory_shrinks_the_batches_and_the_vectors_are_the_same(tmp_path):
    folder = save_model(tmp_path / "model")
    encoder = load(folder, batch_tokens=600)
    expected = load(folder).encode(TEXTS).vectors
    device = SmallDevice(200)
    encoder._model.insert(0, device)
    np.testing.assert_allclose(encoder.encode(TEXTS).vectors, expected, atol=2e-5)
    assert encoder.budget.tokens <= 200 < device.passes[0]
    device.passes.clear()
    encoder.encode(TEXTS)
    assert max(device.passes) <= 200


def test_no_texts_no_vectors(minilm):
    encoded = load(minilm).encode([])
    assert (encoded.vectors.shape, encoded.bad.shape) == ((0, 384), (0,))


def test_a_model_with_a_router_encodes_by_itself(tmp_path):
    from sentence_transformers.base.modules import Router

    plain = save_model(tmp_path / "plain")
    model = SentenceTransformer(str(plain), device="cpu")
    routed = Router.for_query_document([model[0], model[1]], [model[0], model[1]])
    folder = tmp_path / "routed"
    SentenceTransformer(modules=[routed], device="cpu").save(str(folder), create_model_card=False)
    encoder = load(folder)
    assert isinstance(encoder, WholeModelEncoder)
    np.testing.assert_allclose(encoder.encode(TEXTS).vectors, reference(plain, TEXTS), atol=2e-5)
    assert encoder.encode([]).vectors.shape == (0, 32)
    special = encoder.encode(["a [SEP] b", "a </s> b"]).vectors
    assert np.abs(special - encoder.encode(["a b", "a b"]).vectors).max(axis=1).min() > 0.01
