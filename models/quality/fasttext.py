"""Score texts with a fastText classifier, and train one (Joulin et al., https://arxiv.org/abs/1607.01759).

Calls the C++ object `model.f` of the official package, because `predict` of its Python layer fails with numpy 2. Equal
labels and an equal seed give an equal model.

Training is reproducible on one thread only, and on one thread fastText 0.9.3 initialises only the first tenth of its
word vectors (`DenseMatrix::uniform`). The rest is uninitialised memory, sometimes NaN. It therefore trains in a process
whose allocator zeroes memory, so that the rest is always zero.
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError, ModelError, SettingsError
from fineweb_mask.models.settings.quality import FastTextScorerSettings

LABEL_PREFIX = b"__label__"
CONTROL = bytes.maketrans(b"\n\x1c\x1d\x1e\x1f", b" " * 5)
NO_WORD = re.compile(
    rb"</s>|__label__(?:_?label__)*"
    rb"|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2(?:\x80[\x80-\x8a\xa8\xa9\xaf]|\x81\x9f)|\xe3\x80\x80"
)
"""fastText stops at `</s>`, and leaves out words that begin with the other: a page could hide its text behind them. And
the white space, in UTF-8, where `str.split` splits and fastText does not."""
OPTIONS = {"epoch": 12, "lr": 0.5, "dim": 32, "wordNgrams": 2, "bucket": 200_000, "minCount": 2, "seed": 0}
"""Of `fasttext.train_supervised`; they suit a few thousand labels."""
TRAIN = """
import fasttext, json, sys
examples, model, options = sys.argv[1:]
fasttext.train_supervised(examples, thread=1, verbose=0, **json.loads(options)).save_model(model)
"""
ZEROED_MEMORY = {"MALLOC_PERTURB_": "255"}  # glibc fills each block with the complement of this byte, 0
HEADER = "<i32xi"  # of a file: the magic number, and after 32 bytes what the model is for
MAGIC, CLASSIFIER = 793_712_314, 3


class FastTextFormatError(ModelError):
    """The file is no fastText classifier, or a damaged one."""


class FastTextTrainingError(ModelError):
    """The training process failed."""


def fasttext_line(text: str, lowercase: bool) -> bytes:
    r"""Return a text as one UTF-8 line that ends with a newline, of the words where `str.split` splits.

    Words that fastText takes for its own are left out, and a lone surrogate is read as "?".

    >>> fasttext_line("One\u2028line</s> of\n__label__words", lowercase=True)
    b'one line  of  words\n'
    """
    encoded = (text.lower() if lowercase else text).encode("utf-8", "replace")
    return NO_WORD.sub(b" ", encoded.translate(CONTROL)) + b"\n"


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
    lines = [fasttext_line(text, lowercase) for text in texts]
    try:
        labels, probabilities = model.f.multilinePredict(lines, every_label, any_probability, "strict")
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
        """Return the probability of the positive label for each text, (n,); 0 if the model returns no label."""
        labels, probabilities = predict(self._model, texts, self._path, lowercase=self.settings.lowercase)
        positive = self.settings.positive_label
        scores = [
            values[names.index(positive)] if positive in names else 0.0
            for names, values in zip(labels, probabilities, strict=True)
        ]
        return np.clip(np.asarray(scores, dtype=np.float32), 0.0, 1.0)  # fastText's softmax exceeds 1 by rounding


def train_fasttext(
    texts: Sequence[str], positive: Sequence[bool], *, lowercase: bool, options: Mapping[str, float] = OPTIONS
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
        LABEL_PREFIX + (b"1 " if is_positive else b"0 ") + fasttext_line(text, lowercase)
        for text, is_positive in zip(texts, positive, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        examples, model = Path(folder) / "examples.txt", str(Path(folder) / "model.bin")
        examples.write_bytes(b"".join(lines))
        train_in_new_process(str(examples), model, options)
        return load_fasttext(model)


def train_in_new_process(examples: str, model: str, options: Mapping[str, float]) -> None:
    """Train a supervised model on a file of examples in fastText's format, one per line, and write it to `model`.

    `options` are arguments of `fasttext.train_supervised`. If the process fails, FastTextTrainingError ends with its
    error output.
    """
    command = [sys.executable, "-c", TRAIN, examples, model, json.dumps(dict(options))]
    finished = subprocess.run(  # noqa: S603 - this interpreter, the program above
        command, env={**os.environ, **ZEROED_MEMORY}, capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        said = finished.stderr.strip()[-500:] or f"its process ended with {finished.returncode}"
        raise FastTextTrainingError(f"fastText could not be trained: {said}; check the labels")
