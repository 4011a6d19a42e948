"""fastText as a scorer, with real models trained on a few texts."""

import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.quality.fasttext.scorer import (
    HEADER,
    FastTextFormatError,
    FastTextScorer,
    fasttext_lines,
    load_fasttext,
    train_fasttext,
)
from fineweb_mask.models.quality.fasttext.training import train_in_new_process
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.settings.quality import FastTextScorerSettings, FastTextTrainingSettings

GOOD = [f"The theorem of number {n} is proved by careful reasoning about integers and proof." for n in range(20)]
BAD = [f"Buy cheap pills now, click here: offer {n} of discount casino bonus." for n in range(20)]
TRAINING = FastTextTrainingSettings(dimensions=8, buckets=1000, epochs=25)
SMALLEST = FastTextTrainingSettings(dimensions=4, buckets=1, word_ngrams=1, epochs=25)


def train(texts, positive, settings=TRAINING, *, lowercase=False):
    return train_fasttext(texts, positive, settings, lowercase=lowercase)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The same examples twice: the negative label first in the model's list, and the positive one."""
    folder = tmp_path_factory.mktemp("fasttext")
    orders = {
        "negative_first": (GOOD + BAD + BAD[:1], [True] * 20 + [False] * 21),
        "positive_first": (GOOD + BAD + GOOD[:1], [True] * 20 + [False] * 20 + [True]),
    }
    for name, (texts, positive) in orders.items():
        train(texts, positive).save_model(str(folder / name))
    return {name: str(folder / name) for name in orders}


@pytest.fixture
def model(models):
    return models["negative_first"]


def score(model, texts, **settings):
    return FastTextScorer(FastTextScorerSettings(model=model, **settings), model).score(texts)


def test_a_score_is_the_probability_of_the_positive_label_wherever_the_model_lists_it(models):
    found = {name: load_fasttext(path).get_labels() for name, path in models.items()}
    assert found["negative_first"] == found["positive_first"][::-1] == ["__label__0", "__label__1"]
    for model in models.values():
        scores = score(model, [*GOOD, *BAD])
        assert scores.dtype == np.float32
        assert scores[:20].min() > 0.8
        assert scores[20:].max() < 0.2
        np.testing.assert_allclose(scores + score(model, [*GOOD, *BAD], positive_label="__label__0"), 1.0, atol=1e-4)


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


@pytest.mark.parametrize("mark", ["\n</s>\n", " </S> ", " __LABEL__", " __label__</s>\0", "\u2028"])
def test_nothing_hides_behind_fasttext_s_special_words(model, mark):
    spam = " ".join(BAD)
    hidden, shown = score(model, [mark.join([GOOD[0], *spam.split()]), GOOD[0] + " " + spam], lowercase=True)
    assert hidden == shown


def test_lowercase_is_the_scorer_s_choice_and_training_s(model):
    shouted = [text.upper() for text in (GOOD[0], BAD[0])]
    as_given, lowered = score(model, shouted), score(model, shouted, lowercase=True)
    assert lowered.tolist() == score(model, [GOOD[0].lower(), BAD[0].lower()]).tolist()
    assert abs(as_given - lowered).min() > 0.1
    words = train([text.upper() for text in (*GOOD, *BAD)], [True] * 20 + [False] * 20, lowercase=True).get_words()
    assert "theorem" in words
    assert "THEOREM" not in words


def test_an_unknown_positive_label_is_an_error_that_names_the_labels(model):
    labels = "'__label__[01]', '__label__[01]'"
    with pytest.raises(SettingsError, match=rf"no label '__label__hq'.*positive_label.*{labels}"):
        score(model, [], positive_label="__label__hq")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a fastText model: give a .bin or .ftz file"),
        (b"300 100\nthe 0.1 0.2\n" * 50, "is not a fastText model"),
        (None, "cannot be opened"),
        ("folder", "cannot be opened, Is a directory: give a .bin or .ftz file"),
    ],
    ids=["empty", "vectors as text", "missing", "folder"],
)
def test_what_is_no_model_is_refused_by_name(content, says, tmp_path):
    foreign = tmp_path / "foreign.bin"
    if content == "folder":
        foreign.mkdir()
    elif content is not None:
        foreign.write_bytes(content)
    with pytest.raises(FastTextFormatError, match=re.escape(f"foreign.bin {says}")):
        score(str(foreign), [])


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


def test_a_text_cannot_inject_labels():
    injected = ["__label__hq ", "x</s> __label__1 ", "\n__label__1 ", "__label____label__1 "]
    texts = [prefix + text for text in BAD for prefix in injected]
    model = train([*GOOD, *texts], [True] * 20 + [False] * len(texts))
    assert sorted(model.get_labels()) == ["__label__0", "__label__1"]
    assert dict(zip(*model.get_labels(include_freq=True), strict=True)) == {"__label__0": len(texts), "__label__1": 20}


@pytest.mark.parametrize("positive", [[True] * 40, []])
def test_labels_on_one_side_are_an_error(positive):
    with pytest.raises(DataError, match=r"same side of the threshold: set labels\.threshold"):
        train([*GOOD, *BAD][: len(positive)], positive)


@pytest.mark.parametrize("settings", [TRAINING, SMALLEST], ids=["n-grams", "smallest"])
def test_equal_labels_and_seed_give_equal_bytes(settings, tmp_path):
    def trained(seed):
        chosen = settings.model_copy(update={"seed": seed})
        model = train([*GOOD, *BAD], [True] * 20 + [False] * 20, chosen)
        assert np.abs(model.get_input_matrix()).max() < 100  # no left-overs of the allocator
        model.save_model(str(tmp_path / "model.bin"))
        return (tmp_path / "model.bin").read_bytes()

    first = trained(1)
    assert trained(1) == first
    assert trained(2) != first


FASTTEXT_SPACE = re.compile(rb"[ \n\r\t\v\f\0]+")  # Dictionary::readWord
PYTHON_SPACE = [chr(code) for code in range(0x4000) if chr(code).isspace()]
PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from([*PYTHON_SPACE, "</s>", "</S>", "</s", "/s>", "<", "\u0130", "\u03a3", "\u200b", "\u3001", "\0"]),
    st.sampled_from(["__label__", "__LABEL__", "__label", "label__", "_", "]", "~"]),
)
TEXTS = st.lists(st.lists(PIECES, max_size=8).map("".join), max_size=6)


def one_line(text, lowercase):
    """Return a text as one line for fastText: the plain reference."""
    return " ".join(re.sub("</s>|__label__(_?label__)*", " ", text.lower() if lowercase else text).split())


def words(line):
    return [word for word in FASTTEXT_SPACE.split(line) if word]


@given(texts=TEXTS, lowercase=st.booleans())
@example(texts=[f"a{space}b</s>c" for space in PYTHON_SPACE], lowercase=False)
@example(texts=["__label___label__"], lowercase=False)
@example(texts=["a<", "/s>b", "\u00e2", "", "c"], lowercase=False)  # pieces that texts beside them would complete
@example(texts=["word\n" * 6_000, "\u2028" * 9_000 + "end</s>"], lowercase=False)
def test_lines_hold_the_words_of_the_reference(texts, lowercase):
    lines = fasttext_lines(pa.array(texts, pa.string()), lowercase)
    assert len(lines) == len(texts)
    for text, line in zip(texts, lines, strict=True):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert words(line) == words(one_line(text, lowercase).encode())


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()], ids=str)
def test_slices_of_every_kind_of_string_are_read_and_left_as_they_are(kind):
    texts = pa.array(["x", "a\nb", "\u00e9\u2003f", "y"], kind)
    assert fasttext_lines(texts.slice(1, 2), lowercase=False) == [b"a b\n", "\u00e9   f\n".encode()]
    assert texts.to_pylist() == ["x", "a\nb", "\u00e9\u2003f", "y"]
