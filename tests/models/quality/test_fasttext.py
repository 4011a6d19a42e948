"""fastText as a scorer, with real models trained on a few texts."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.quality.fasttext import (
    HEADER,
    OPTIONS,
    FastTextFormatError,
    FastTextScorer,
    fasttext_line,
    load_fasttext,
    train_fasttext,
    train_in_new_process,
)
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.settings.quality import FastTextScorerSettings

GOOD = [f"The theorem of number {n} is proved by careful reasoning about integers and proof." for n in range(20)]
BAD = [f"Buy cheap pills now, click here: offer {n} of discount casino bonus." for n in range(20)]


def train(texts, positive, *, lowercase=False, **changed):
    options = OPTIONS | {"dim": 8, "bucket": 1000, "epoch": 25} | changed
    return train_fasttext(texts, positive, lowercase=lowercase, options=options)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that lists the negative label first."""
    path = str(tmp_path_factory.mktemp("fasttext") / "model.bin")
    train([*GOOD, *BAD, *BAD[:1]], [True] * 20 + [False] * 21).save_model(path)
    return path


def score(model, texts, **settings):
    return FastTextScorer(FastTextScorerSettings(model=model, **settings), model).score(texts)


def test_a_score_is_the_probability_of_the_positive_label_wherever_the_model_lists_it(model, tmp_path):
    other = str(tmp_path / "positive_first")
    train([*GOOD, *BAD, *GOOD[:1]], [True] * 20 + [False] * 20 + [True]).save_model(other)
    assert load_fasttext(model).get_labels() == load_fasttext(other).get_labels()[::-1] == ["__label__0", "__label__1"]
    for one in (model, other):
        scores = score(one, [*GOOD, *BAD])
        assert np.array_equal(scores > 0.8, [True] * 20 + [False] * 20)
        assert scores[20:].max() < 0.2
        np.testing.assert_allclose(scores + score(one, [*GOOD, *BAD], positive_label="__label__0"), 1.0, atol=1e-4)
    with pytest.raises(SettingsError, match=r"no label '__label__hq'.*positive_label.*'__label__0', '__label__1'"):
        score(model, [], positive_label="__label__hq")
    with pytest.raises(DataError, match=r"same side of the threshold: set labels\.threshold"):
        train(GOOD, [True] * 20)


def test_any_texts_have_scores_and_a_batch_those_of_its_texts_one_by_one(model):
    scorer = load_scorer(FastTextScorerSettings(model=model), model)
    texts = [GOOD[0], "", " \n", BAD[0], "\x00", "zzz qqq", "\ud800", "\U00013000 \ue000", GOOD[1] * 100_000]
    scores = scorer.score(texts)
    assert scores.tolist() == [float(scorer.score([text])[0]) for text in texts]
    assert (scores.min() >= 0, scores.max() <= 1, scorer.score([]).shape) == (True, True, (0,))
    assert scorer.score(["theorem \udfff proof"]) == scorer.score(["theorem ? proof"])


def test_a_text_for_which_the_model_returns_no_label_gets_0(tmp_path):
    examples, path = tmp_path / "examples.txt", str(tmp_path / "model.bin")
    examples.write_text("".join(f"__label__{n % 2} {f'w{n % 2} ' * 9}\n" for n in range(60)))
    train_in_new_process(str(examples), path, {"dim": 2, "bucket": 0, "minCount": 100})  # not even the line's end
    assert score(path, ["", "unknown"]).tolist() == [0.0, 0.0]
    assert score(path, ["w1"]) > 0.4


def test_nothing_hides_behind_fasttext_s_special_words_and_no_text_injects_a_label(model):
    words = [GOOD[0], *" ".join(BAD).split()]
    marks = (" ", "\n</s>\n", " </S> ", " __LABEL__", " __label__</s>\0", "\u2028")
    assert len(set(score(model, [mark.join(words) for mark in marks], lowercase=True))) == 1
    injected = [f"x</s> __label__{label} {text}" for text in BAD for label in ("1", "hq")]
    labels = train([*GOOD, *injected], [True] * 20 + [False] * 40).get_labels(include_freq=True)
    assert dict(zip(*labels, strict=True)) == {"__label__0": 40, "__label__1": 20}


def test_lowercase_is_the_scorer_s_choice_and_training_s(model):
    shouted = [text.upper() for text in (GOOD[0], BAD[0])]
    as_given, lowered = score(model, shouted), score(model, shouted, lowercase=True)
    assert lowered.tolist() == score(model, [GOOD[0].lower(), BAD[0].lower()]).tolist()
    assert abs(as_given - lowered).min() > 0.1
    words = train([text.upper() for text in (*GOOD, *BAD)], [True] * 20 + [False] * 20, lowercase=True).get_words()
    assert "theorem" in words
    assert "THEOREM" not in words


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is not a fastText model: give a .bin or .ftz file"), (b"the 0.1 0.2\n" * 50, "is not a fastText model")],
)
def test_what_is_no_model_is_refused_by_name(content, says, tmp_path):
    foreign = tmp_path / "foreign.bin"
    foreign.write_bytes(content)
    folder = f"{tmp_path.name} cannot be opened, Is a directory: give a .bin or .ftz file"
    for path, expected in ((foreign, f"foreign.bin {says}"), (tmp_path, folder), (tmp_path / "no", "cannot be opened")):
        with pytest.raises(FastTextFormatError, match=re.escape(expected)):
            score(str(path), [])


def test_a_quantised_model_is_a_classifier_and_word_vectors_are_none(tmp_path):
    import fasttext

    examples = tmp_path / "examples.txt"
    examples.write_text("".join(f"__label__{n % 2} word{n} other{n * 7 % 501}\n" for n in range(700)))
    path = str(tmp_path / "model")
    train_in_new_process(str(examples), path, {"dim": 4, "bucket": 300, "wordNgrams": 2})
    quantised = fasttext.load_model(path)
    quantised.quantize(str(examples))
    quantised.save_model(path)
    assert len(score(path, ["word1"])) == 1
    content = Path(path).read_bytes()
    skipgram, future = struct.calcsize(HEADER) - 4, 4
    for place, value, says in (
        (skipgram, 2, "holds word vectors, not a classifier: give a supervised"),
        (future, 99, r"model is damaged, .*: copy or download it again"),
    ):
        Path(path).write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
        with pytest.raises(FastTextFormatError, match=says):
            score(path, [])


def test_equal_labels_and_seed_give_equal_bytes(tmp_path):
    def trained(seed):
        model = train([*GOOD, *BAD], [True] * 20 + [False] * 20, dim=4, bucket=1, wordNgrams=1, seed=seed)
        assert np.abs(model.get_input_matrix()).max() < 100  # no left-overs of the allocator
        model.save_model(str(tmp_path / "model.bin"))
        return (tmp_path / "model.bin").read_bytes()

    first = trained(1)
    assert trained(1) == first
    assert trained(2) != first


@pytest.mark.parametrize("space", [chr(code) for code in range(0x4000) if chr(code).isspace()])
def test_a_line_is_split_where_python_splits(space):
    line = fasttext_line(f"{space}a{space * 2}B", lowercase=True)
    assert line.index(b"\n") == len(line) - 1
    assert FASTTEXT_SPACE.split(line) == [b"", b"a", b"b", b""]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("a</s>b </S>", "a b </S>"),
        ("__label__1 __label___label__a __label_", "1 a __label_"),
        ("x__label__label__</s>\u200b\u3001", "x \u200b\u3001"),
        ("\ud800 \u00e2\u0080 \u00c2", "? \u00e2\u0080 \u00c2"),
    ],
)
def test_a_line_holds_none_of_fasttext_s_own_words(text, words):
    assert fasttext_line(text, lowercase=False).split() == words.encode().split()
    assert fasttext_line(text.upper(), lowercase=True) == fasttext_line(text.lower(), lowercase=False)


FASTTEXT_SPACE = re.compile(rb"[ \n\r\t\v\f\0]+")  # Dictionary::readWord
