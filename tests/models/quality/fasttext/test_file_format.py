"""A file that is truncated anywhere, or not a fastText model, is rejected with its name."""

import os
import struct
import subprocess
import sys

import fasttext
import pytest

from fineweb_mask.models.quality.fasttext.file_format import FastTextFormatError, check_fasttext_file
from fineweb_mask.models.quality.fasttext.scorer import FastTextScorer
from fineweb_mask.models.quality.fasttext.training import train_in_new_process
from fineweb_mask.models.settings.quality import FastTextScorerSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every kind of file that fastText writes."""
    folder = tmp_path_factory.mktemp("formats")
    examples = folder / "examples.txt"
    examples.write_text("".join(f"__label__{n % 2} word{n} other{n * 7 % 501}\n" for n in range(700)))
    train_in_new_process(str(examples), str(folder / "model.bin"), {"dim": 4, "bucket": 300, "wordNgrams": 2})
    for name, choices in {"plain": {}, "norms": {"qnorm": True}, "cut": {"cutoff": 300}}.items():
        model = fasttext.load_model(str(folder / "model.bin"))
        model.quantize(str(examples), **choices)
        model.save_model(str(folder / f"{name}.ftz"))
    return folder


MODELS = ["model.bin", "plain.ftz", "norms.ftz", "cut.ftz"]


@pytest.mark.parametrize("name", MODELS)
def test_what_fasttext_wrote_is_whole(folder, name):
    check_fasttext_file(str(folder / name))
    settings = FastTextScorerSettings(model=name)
    assert len(FastTextScorer(settings, str(folder / name)).score(["word1"])) == 1


@pytest.mark.parametrize("name", MODELS)
def test_a_file_cut_anywhere_is_refused_by_name(folder, name, tmp_path):
    content = (folder / name).read_bytes()
    cut = tmp_path / f"cut-{name}"
    for size in [*range(0, len(content), 331), len(content) - 1]:
        cut.write_bytes(content[:size])
        with pytest.raises(FastTextFormatError, match=f"cut-{name}.*(cut short or damaged|is not a fastText model)"):
            check_fasttext_file(str(cut))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 1000,
        b"300 100\nthe 0.1 0.2\n" * 50,
        b"\x80\x04N." * 100,
        b"PK\x03\x04" * 99,
        b"version https://git-lfs",
    ],
    ids=["empty", "zeros", "vectors as text", "pickle", "zip", "pointer"],
)
def test_another_kind_of_file_is_refused_by_name(content, tmp_path):
    foreign = tmp_path / "foreign.bin"
    foreign.write_bytes(content)
    with pytest.raises(FastTextFormatError, match=r"foreign\.bin is not a fastText model"):
        FastTextScorer(FastTextScorerSettings(model="m"), str(foreign))


@pytest.mark.parametrize("seed", range(20))
def test_noise_behind_a_good_start_is_refused(folder, tmp_path, seed):
    noisy = tmp_path / "noisy.bin"
    start = (folder / "model.bin").read_bytes()[: 8 + 3 * seed]
    noisy.write_bytes(start + os.urandom(20_000))
    with pytest.raises(FastTextFormatError, match=r"noisy\.bin"):
        check_fasttext_file(str(noisy))


def test_word_vectors_are_refused(folder, tmp_path):
    content = bytearray((folder / "model.bin").read_bytes())
    skip_gram, model_argument = 2, 8 + 4 * 7
    content[model_argument] = skip_gram
    (tmp_path / "vectors.bin").write_bytes(content)
    with pytest.raises(FastTextFormatError, match=r"vectors\.bin holds word vectors, not a classifier"):
        check_fasttext_file(str(tmp_path / "vectors.bin"))


SCORE_ALL = """
import sys
from fineweb_mask.models.quality.fasttext.scorer import FastTextScorer
from fineweb_mask.models.settings.quality import FastTextScorerSettings
settings = FastTextScorerSettings(model="m", positive_label="__label__1")
for path in sys.argv[1:]:
    print(path, flush=True)
    try:
        FastTextScorer(settings, path).score(["word1 other2 no such words", "word1 word1 word2"])
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""
"""Ends by a signal if fastText reads beyond its memory."""

DIM, WORD_NGRAMS, LOSS, BUCKET, MAXN = (8 + 4 * index for index in (0, 5, 6, 8, 10))
ENTRIES, WORDS, LABELS, PRUNED = 64, 68, 72, 84
WRONG_HEADERS = {
    "more buckets than rows": (BUCKET, "<i", 2_000_000_000),
    "fewer buckets than rows": (BUCKET, "<i", 299),
    "no buckets": (BUCKET, "<i", 0),
    "negative buckets": (BUCKET, "<i", -300),
    "more dimensions": (DIM, "<i", 8),
    "no dimensions": (DIM, "<i", 0),
    "negative dimensions": (DIM, "<i", -4),
    "unknown loss": (LOSS, "<i", 9),
    "n-grams without end": (WORD_NGRAMS, "<i", 2_000_000_000),
    "characters without end": (MAXN, "<i", 2_000_000_000),
    "fewer than no characters": (MAXN, "<i", -1),
    "negative entries": (ENTRIES, "<i", -1),
    "negative words": (WORDS, "<i", -1),
    "negative labels": (LABELS, "<i", -2),
    "pruned without n-grams": (PRUNED, "<q", 0),
    "pruned by a negative number": (PRUNED, "<q", -2),
    "pruned without end": (PRUNED, "<q", 2**62),
}


def changed(content, place, layout, value):
    found = bytearray(content)
    struct.pack_into(layout, found, place, value)
    return bytes(found)


def after_dictionary(content):
    """Return the place after the dictionary's entries."""
    [entries] = struct.unpack_from("<i", content, ENTRIES)
    place = ENTRIES + 28
    for _ in range(entries):
        place = content.index(b"\0", place) + 10
    return place


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("wrong", WRONG_HEADERS)
def test_a_header_that_contradicts_the_rest_is_refused(folder, tmp_path, model, wrong):
    content = (folder / model).read_bytes()
    crafted = changed(content, *WRONG_HEADERS[wrong])
    if crafted == content or (model == "cut.ftz" and wrong == "fewer buckets than rows"):
        return  # what is cut has fewer rows than buckets
    if model == "cut.ftz" and wrong == "more buckets than rows":
        pytest.skip("n-grams that are kept say where they are: any number of buckets fits")
    (tmp_path / "crafted.bin").write_bytes(crafted)
    with pytest.raises(FastTextFormatError, match=r"crafted\.bin is (cut short or )?damaged"):
        check_fasttext_file(str(tmp_path / "crafted.bin"))


@pytest.mark.parametrize(
    ("model", "offset", "layout", "value"),
    [
        ("model.bin", 1, "<q", 2**40),  # rows of the input
        ("model.bin", 1, "<q", -1),
        ("model.bin", 9, "<q", 2**61),  # its columns
        ("model.bin", 0, "<B", 1),  # quantised
        ("model.bin", 0, "<B", 7),
        ("plain.ftz", 2, "<q", 1),  # rows of the input
        ("plain.ftz", 18, "<i", 5),  # codes
        ("plain.ftz", 18, "<i", -5),
        ("plain.ftz", 1, "<B", 1),  # with norms
        ("cut.ftz", 4, "<i", 2**30),  # place of an n-gram that is kept
        ("cut.ftz", 4, "<i", -1),
    ],
)
def test_matrices_of_other_sizes_are_refused(folder, tmp_path, model, offset, layout, value):
    content = (folder / model).read_bytes()
    (tmp_path / "crafted.bin").write_bytes(changed(content, after_dictionary(content) + offset, layout, value))
    with pytest.raises(FastTextFormatError, match=r"crafted\.bin is (cut short or )?damaged"):
        check_fasttext_file(str(tmp_path / "crafted.bin"))


def test_labels_among_the_words_and_odd_counts_of_labels_are_refused(folder, tmp_path):
    content = (folder / "model.bin").read_bytes()
    end = after_dictionary(content)
    for place, layout, value in [
        (end - 1, "<b", 0),
        (end - 9, "<q", 0),
        (end - 9, "<q", 2**62),
        (end - 11, "<B", 0xFF),
    ]:
        (tmp_path / "crafted.bin").write_bytes(changed(content, place, layout, value))
        with pytest.raises(FastTextFormatError, match=r"crafted\.bin is damaged"):
            check_fasttext_file(str(tmp_path / "crafted.bin"))


def test_what_passes_the_check_never_ends_the_process(folder, tmp_path):
    """Every number before the matrices is set to odd values, and every matrix's sizes."""
    accepted = []
    for name in MODELS:
        content = (folder / name).read_bytes()
        end = after_dictionary(content)
        places = [*range(0, ENTRIES + 28, 4), *range(end - 40, min(end + 60, len(content) - 8))]
        for place in places:
            for value in (0, 1, -1, 255, 2**30, -(2**31)):
                path = tmp_path / f"{name}-{place}-{value}.bin"
                path.write_bytes(changed(content, place, "<i", value))
                try:
                    check_fasttext_file(str(path))
                except FastTextFormatError:
                    path.unlink()
                else:
                    accepted.append(str(path))
    assert accepted
    done = subprocess.run([sys.executable, "-c", SCORE_ALL, *accepted], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]
