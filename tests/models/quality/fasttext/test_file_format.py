"""A file that is truncated anywhere, or not a fastText model, is rejected with its name."""

import os

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
