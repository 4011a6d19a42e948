"""Marks by published rules: against a plain count of each, on texts of every kind."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.quality.rules import CHARACTERS, STOP_WORDS, RulesScorer, marks
from fineweb_mask.models.settings.quality import RulesScorerSettings

PROSE = "The sea is calm today, and the tide that we have waited for is full. It is time to go down to the boats."
MENU = "Home | Shop | Login\nHome | Shop | Login\n# # #"
TEXTS = [
    PROSE,
    MENU,
    "",
    " \n\t \n",
    "a",
    f"  {PROSE}\n\n\t{PROSE}\r\n{MENU}  ",
    "“The end,” he said. “And so it is.”\nNo end here\nÜber Straßen und Brücken gehen viele Leute…",
    "word " * 40 + "{ } ... #",
    "\n".join(["Read more", "All rights reserved."] * 6),
    "the,be.to;of and THAT have? With it",
    "语言 没有 空格 的 文字。",
    "\ufeffthe\u00a0end of the road and the sea",
]


def rising(value, low, high):
    return min(max((value - low) / (high - low), 0), 1)


def plain(text):
    """The marks of one text, counted word by word."""
    text = text[:CHARACTERS]
    words = re.split(r"[ \t\n\v\f\r]+", text.strip(" \t\n\v\f\r"))
    if words == [""]:
        return [0.0] * 6
    lines = [line.strip(" \t\v\f\r") for line in text.split("\n")]
    lines = [line for line in lines if line]

    def letters(word):
        return "".join(one for one in word if (one.isascii() and one.isalpha()) or not one.isascii())

    def is_stop_word(word):
        own = letters(word).lower()
        return own in STOP_WORDS and word.lower().startswith(own)

    def repeated(items):
        return 1 - len(set(items)) / len(items) if items else 0.0

    sizes = [len(line.encode()) for line in lines]
    ending = sum(size for line, size in zip(lines, sizes, strict=True) if line.endswith((".", "!", "?", '"', "”")))
    lowered = [word.lower() for word in words]
    runs = [tuple(lowered[at : at + 5]) for at in range(len(words) - 4)]
    own_lines = [tuple(re.split(r"[ \t\v\f\r]+", line.lower())) for line in lines]
    symbols = sum(text.count(one) for one in ("#", "...", "…", "{"))
    spelled = [word for word in words if letters(word)]
    length = np.mean([len(word) for word in spelled]) if spelled else 0
    return [
        rising(np.mean([is_stop_word(word) for word in words]), 0, 0.15),
        rising(ending / sum(sizes), 0.12, 0.9),
        rising(-np.mean([size < 30 for size in sizes]), -0.67, 0),
        min(rising(-repeated(runs), -0.15, 0), rising(-repeated(own_lines), -0.3, 0)),
        min(rising(len(spelled) / len(words), 0.8, 0.98), rising(-symbols / len(words), -0.1, 0)),
        min(rising(length, 3, 4.5), rising(-length, -10, -6)),
    ]


def test_marks_are_those_of_a_plain_count_also_of_real_pages(real_data) -> None:
    pages = pq.read_table(real_data / "web_mix.parquet", columns=["text"])["text"].to_pylist()[::400]
    texts = [*TEXTS, *(page.translate({0x00A0: " ", 0x2028: " ", 0x0085: " "}) for page in pages)]
    found = np.stack([*marks(pa.array(texts, pa.large_string())).values()], 1)
    np.testing.assert_allclose(found, [plain(text) for text in texts], atol=1e-9)


def test_a_score_is_the_mean_of_the_marks_whatever_batch_a_text_is_in() -> None:
    scorer = load_scorer(RulesScorerSettings(), "")
    texts = TEXTS * 120
    scores = scorer.score(texts)
    assert scores.tolist() == scorer.score(TEXTS).tolist() * 120
    prose, menu, nothing = scores[:3]
    assert prose > 0.85
    assert 0.6 > menu > nothing == 0
    np.testing.assert_allclose(scores[: len(TEXTS)], [np.mean(plain(text)) for text in TEXTS], atol=1e-6)
    array = pa.array(texts, pa.string())
    assert scorer.score(array.slice(5, 700)).tolist() == scores[5:705].tolist()
    assert scorer.score([]).shape == scorer.score(array.slice(0, 0)).shape == (0,)


@pytest.mark.parametrize("text", ["a " * 30_000, "é" * 20_000])
def test_any_text_has_a_score_and_only_its_beginning_is_read(text) -> None:
    [score] = RulesScorer().score([text])
    assert 0 <= score <= 1
    beginning = (text * (CHARACTERS // len(text) + 1))[:CHARACTERS]
    cut, long = RulesScorer().score([beginning, beginning + MENU * 500])
    assert cut == long
