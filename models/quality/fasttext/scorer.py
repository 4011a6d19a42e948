"""Score texts with a fastText classifier, and train one (Joulin et al., https://arxiv.org/abs/1607.01759).

Calls the C++ object `model.f` of the official package, because `predict` of its Python layer fails with numpy 2. Equal
labels and an equal seed give an equal model.

Whatever reads a text by fastText reads the line that `fasttext_lines` makes of it. fastText ends a line at a newline or
at its end-of-line word, takes words with a prefix for labels, and splits words at ASCII white space only; Python splits
at Unicode white space, too. All of these are overwritten with spaces in the UTF-8 bytes of all texts at once: no text
changes its length in bytes, and fastText reads a run of spaces as one.
"""

import struct
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError, ModelError, SettingsError
from fineweb_mask.models.quality.fasttext.training import train_in_new_process
from fineweb_mask.models.settings.quality import FastTextScorerSettings, FastTextTrainingSettings

NEWLINE, SPACE = 10, 32
LABEL_PREFIX = b"__label__"
SPECIAL = (b"</s>", LABEL_PREFIX)
"""fastText stops at one, and leaves out words that begin with the other: a page could hide its text behind them."""
SEPARATORS = tuple(  # where `str.split` splits and fastText does not: one array per length in UTF-8 bytes
    np.array([int.from_bytes(chr(code).encode()) for code in codes], dtype=np.uint32)
    for codes in (
        range(0x1C, 0x20),
        (0x85, 0xA0),
        (0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
    )
)


def fasttext_lines(texts: Sequence[str], lowercase: bool) -> list[bytes]:
    """Return each of n texts as one UTF-8 line that ends with a newline, for `multilinePredict`.

    `lowercase` converts as `str.lower` does. A lone surrogate is read as "?".
    """
    encoded = [(text.lower() if lowercase else text).encode("utf-8", "replace") for text in texts]
    ends = np.cumsum([len(text) + 1 for text in encoded], dtype=np.int64)
    data = np.frombuffer(bytearray(b"\n".join([*encoded, b""])), np.uint8)
    data[data == NEWLINE] = SPACE
    data[ends - 1] = NEWLINE
    _overwrite_separators(data)
    lines = data.tobytes()
    return [lines[start:end] for start, end in pairwise([0, *ends.tolist()])]


def _overwrite_separators(data: NDArray[np.uint8]) -> None:
    """Replace special words and separators by spaces: all begin with 1C-1F, 3C-3F, 5C-5F, C0-C3 or E0-E3."""
    masked = data & 0xDC
    candidates = np.flatnonzero((masked == 0x1C) | (masked == 0x5C) | (masked == 0xC0))
    first = data[candidates]
    for word in SPECIAL:
        found = candidates[first == word[0]]
        for offset, byte in enumerate(word[1:], start=1):  # the newline at a line's end stops a match
            found = found[data[found + offset] == byte]
        _overwrite(data, found, len(word))
    for separators, begins in zip(SEPARATORS, (first < 0x20, first == 0xC2, first >= 0xE0), strict=True):
        found = candidates[begins]
        length = (int(separators[0]).bit_length() + 7) // 8
        code = np.zeros(len(found), np.uint32)
        for offset in range(length):
            code = code << 8 | data[found + offset]
        nearest = separators[np.searchsorted(separators, code, side="right") - 1]
        _overwrite(data, found[nearest == code], length)


def _overwrite(data: NDArray[np.uint8], found: NDArray[np.intp], length: int) -> None:
    for offset in range(length):
        data[found + offset] = SPACE


HEADER = "<i32xi"  # of a file: the magic number, and after 32 bytes what the model is for
MAGIC, CLASSIFIER = 793_712_314, 3


class FastTextFormatError(ModelError):
    """The file is no fastText classifier, or a damaged one."""


def check_fasttext_file(path: str) -> None:
    """Raise FastTextFormatError unless a file begins as a classifier of fastText does; the rest is not read."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(struct.calcsize(HEADER))
    except OSError as error:
        raise FastTextFormatError(f"{path} cannot be opened, {error.strerror}: give a .bin or .ftz file") from error
    magic, kind = struct.unpack(HEADER, start) if len(start) == struct.calcsize(HEADER) else (0, 0)
    if magic != MAGIC:
        raise FastTextFormatError(
            f"{path} is not a fastText model: give a .bin or .ftz file written by fastText, not vectors or text"
        )
    if kind != CLASSIFIER:
        raise FastTextFormatError(f"{path} holds word vectors, not a classifier: give a supervised fastText model")


def load_fasttext(path: str) -> Any:  # noqa: ANN401 - fastText has no types
    """Load a classifier; if the file is none, or fastText cannot read it, FastTextFormatError is raised."""
    check_fasttext_file(path)
    import fasttext  # after the check, and not before a model is used: its import takes a quarter of a second

    try:
        return fasttext.load_model(path)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise FastTextFormatError(f"{path} is damaged, {error}: copy or download it again") from error


def predict(
    model: Any,  # noqa: ANN401
    texts: Sequence[str],
    path: str,
    *,
    lowercase: bool = False,
) -> tuple[list[list[str]], list[NDArray[np.float32]]]:
    """Return the labels of each text and their probabilities, the likeliest first, by a model of the file `path`.

    Raises
    ------
    FastTextFormatError
        If the model's numbers give no probabilities.
    """
    every_label, any_probability = -1, 0.0
    try:
        labels, probabilities = model.f.multilinePredict(
            fasttext_lines(texts, lowercase), every_label, any_probability, "strict"
        )
    except RuntimeError as error:  # fastText found a NaN
        raise FastTextFormatError(
            f"{path} is damaged: its numbers give no scores: {error} Copy or download it again"
        ) from error
    return labels, probabilities


class FastTextScorer:
    """Score a text with the probability of the model's positive label, in [0, 1].

    Raises
    ------
    FastTextFormatError
        If the file is no fastText classifier.
    SettingsError
        If the model has no label `positive_label`.
    """

    columns: tuple[str, ...] = ("text",)

    def __init__(self, settings: FastTextScorerSettings, model_path: str) -> None:
        self.settings = settings
        self._path = model_path
        self._model = load_fasttext(model_path)
        labels = self._model.get_labels()
        if settings.positive_label not in labels:
            raise SettingsError(
                f"the fastText model {model_path!r} has no label {settings.positive_label!r}, "
                f"set positive_label to one of {labels}"
            )

    def score(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the probability of the positive label for each text, (n,); 0 if the model returns no label.

        A lone surrogate is read as "?".

        Raises
        ------
        FastTextFormatError
            If the model's numbers give no scores.
        """
        labels, probabilities = predict(self._model, texts, self._path, lowercase=self.settings.lowercase)
        positive = self.settings.positive_label
        scores = [
            values[names.index(positive)] if positive in names else 0.0
            for names, values in zip(labels, probabilities, strict=True)
        ]
        return np.clip(np.asarray(scores, dtype=np.float32), 0.0, 1.0)  # fastText's softmax exceeds 1 by rounding


def train_fasttext(
    texts: Sequence[str], positive: Sequence[bool], settings: FastTextTrainingSettings, *, lowercase: bool
) -> Any:  # noqa: ANN401
    """Train a supervised fastText model on n texts, `positive` (n,) true for an example of good text.

    Its labels are `__label__1` (positive) and `__label__0`. `lowercase` must equal the setting of the scorer that uses
    the model.

    Raises
    ------
    DataError
        If all labels are equal.
    FastTextTrainingError
        If the training process fails.
    """
    if len(set(positive)) < 2:
        raise DataError("every label falls on the same side of the threshold: set labels.threshold between the scores")
    lines = [
        LABEL_PREFIX + (b"1 " if is_positive else b"0 ") + line
        for line, is_positive in zip(fasttext_lines(texts, lowercase), positive, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        examples, model = Path(folder) / "examples.txt", str(Path(folder) / "model.bin")
        examples.write_bytes(b"".join(lines))
        options = {
            "epoch": settings.epochs,
            "lr": settings.learning_rate,
            "dim": settings.dimensions,
            "wordNgrams": settings.word_ngrams,
            "bucket": settings.buckets,
            "minCount": 2,
            "seed": settings.seed,
        }
        train_in_new_process(str(examples), model, options)
        return load_fasttext(model)
