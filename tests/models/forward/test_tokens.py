"""The first tokens of a text are those of the whole text."""

import json
import random

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace, Whitespace, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from fineweb_mask.models.forward import tokens
from fineweb_mask.models.forward.tokens import (
    all_tokens,
    first_tokens,
    in_batches,
    read_as_text,
    special_ids,
    without_cache,
)

CORPUS = ["the piano and the goal, harmony of strikers", "playing played player pianos unharmonious 1987-88"]


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(WordPiece(unk_token="[UNK]"))
    made.normalizer = BertNormalizer()
    made.pre_tokenizer = BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(CORPUS, WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False))
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made


def whole(tokenizer, text, max_tokens):
    """The plain way: tokenise all, then cut."""
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(max_tokens)
    return cutting.encode(text).ids


PIECES = ["piano", " ", "  \n", "unharmonious", "a" * 30, "a" * 120, "é", "日本語", "[SEP]", ",", "\x00", "Q"]


@given(st.lists(st.sampled_from(PIECES), max_size=80).map("".join), st.integers(2, 12))
@example(" " * 2_500 + "piano goal", 6)  # a start without tokens is read on
@example("x" * 2_500 + " piano goal", 6)
@example("piano " * 2_000, 6)
def test_as_if_the_whole_text_had_been_read(tokenizer, text, max_tokens):
    found = first_tokens(tokenizer, [text, "goal"], max_tokens)
    assert found.tolist() == [whole(tokenizer, one, max_tokens) for one in (text, "goal")]


@pytest.mark.parametrize("filler", [" ", "x"])
def test_no_more_is_read_than_the_most_characters_per_token(tokenizer, filler):
    text = filler * (6 * tokens.MOST_CHARS_PER_TOKEN) + " piano"
    assert first_tokens(tokenizer, [text], 6).tolist() == [whole(tokenizer, filler * 1_000, 6)]
    without_start = Tokenizer.from_str(tokenizer.to_str())
    without_start.post_processor = TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    assert (special_ids(tokenizer), special_ids(without_start)) == (([2], [3]), ([], [3]))


def test_all_tokens_of_texts_are_those_of_each_alone(tokenizer, monkeypatch):
    monkeypatch.setattr(tokens, "CALL_CHARS", 60)
    texts = ["unharmonious goal, striker\n " * 9, "", " " * 300, "goal \ud800", "piano"]
    expected = [tokenizer.encode(text.replace("\ud800", "?"), add_special_tokens=False).ids for text in texts]
    assert all_tokens(tokenizer, texts).tolist() == expected


SPECIAL = ["[UNK]", "</s>", "<pad>", "<|endoftext|>"]


def bpe(pre_tokenizer, texts=CORPUS, **options):
    made = Tokenizer(BPE(unk_token="[UNK]", **options))
    made.pre_tokenizer = pre_tokenizer
    made.train_from_iterator(texts, BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False))
    return made


def of_words(model, pre_tokenizer):
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizer
    made.add_special_tokens(SPECIAL)
    return made


CHARACTERS = [(character, -9.0) for character in sorted({*"".join(CORPUS), *"".join(SPECIAL), "\u2581"})]
WORDS = {word: number for number, word in enumerate([*SPECIAL, *" ".join(CORPUS).split()])}
TOKENIZERS = {
    "merged to the special token itself": bpe(WhitespaceSplit(), [*CORPUS, *[" ".join(SPECIAL)] * 9]),
    "whole words": bpe(WhitespaceSplit(), ignore_merges=True),
    "likeliest pieces": of_words(Unigram([*((name, 0.0) for name in SPECIAL), *CHARACTERS], 0), Metaspace()),
    "words": of_words(WordLevel(dict(WORDS), unk_token="[UNK]"), WhitespaceSplit()),
    "added later": of_words(BPE(), ByteLevel()),
}


@pytest.mark.parametrize("flagged", [True, False])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_looks_like_a_special_token_is_text_and_other_texts_have_the_tokens_that_they_had(kind, flagged):
    content = json.loads(TOKENIZERS[kind].to_str())
    content["added_tokens"] = [one | {"special": flagged} for one in content["added_tokens"]]
    read = Tokenizer.from_str(json.dumps(content))
    read.add_tokens(["player", AddedToken("   ", normalized=False)])  # not special: found as before
    before = Tokenizer.from_str(read.to_str())
    texts = [*CORPUS, "player   played by players", "\u00e9\u0416"]
    unknown, control = read.token_to_id("[UNK]"), {read.token_to_id(name) for name in SPECIAL[1:]}
    read_as_text(read, [] if flagged else SPECIAL)
    assert [one.ids for one in read.encode_batch(texts)] == [one.ids for one in before.encode_batch(texts)]
    for name in SPECIAL[1:]:
        for text in (name, f"goal{name}goal", f" {name} {name} player   "):
            assert control & {*before.encode(text).ids}
            assert not control & {*read.encode(text).ids}
    assert read.encode("</s>player   </s>").tokens.count("player") == 1
    assert kind != "words" or read.encode("</s>").ids == [unknown]


def test_without_its_cache_a_tokenizer_is_the_same_and_leaves_no_memory_behind(tokenizer):
    generator = random.Random(0)
    texts = [" ".join("".join(generator.choices("abcdefgh", k=8)) for _ in range(1_000)) for _ in range(12)]
    trained = bpe(Whitespace(), texts[:1], ignore_merges=True)
    ids = [encoding.ids for encoding in trained.encode_batch_fast(texts)]

    def encode_without_cache():
        copy = Tokenizer.from_str(trained.to_str())
        without_cache(copy)
        assert copy.to_str() == trained.to_str()
        assert [encoding.ids for encoding in copy.encode_batch_fast(texts)] == ids

    encode_without_cache()
    before = psutil.Process().memory_info().rss
    for _ in range(20):
        encode_without_cache()
    assert psutil.Process().memory_info().rss - before < 10 * 2**20  # with their caches, more than twice that
    without_cache(tokenizer)  # not BPE: left alone


def test_a_batch_is_bounded_in_documents_and_characters():
    texts = ["a" * 40] * 5 + ["b" * 500] + ["c"] * 513
    batches = list(in_batches(iter(texts), 100, 512))
    assert [text for batch in batches for text in batch] == texts
    assert [len(batch) for batch in batches] == [2, 2, 1, 1, 100, *[100] * 4, 13]
