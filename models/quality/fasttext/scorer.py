"""Score texts with a fastText classifier, and train one (Joulin et al., https://arxiv.org/abs/1607.01759).

Calls the C++ object `model.f` of the official package, because `predict` of its Python layer fails with numpy 2. Equal
labels and an equal seed give an equal model.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.quality.fasttext.file_format import FastTextFormatError, check_fasttext_file
from fineweb_mask.models.quality.fasttext.lines import fasttext_lines
from fineweb_mask.models.quality.fasttext.training import train_in_new_process
from fineweb_mask.models.settings.quality import FastTextScorerSettings
from fineweb_mask.models.settings.training import FastTextTrainingSettings

LABEL_PREFIX = "__label__"
END_OF_LINE = "</s>"  # fastText stops here, so a page could hide the rest of its text behind this word
POSITIVE, NEGATIVE = f"{LABEL_PREFIX}1", f"{LABEL_PREFIX}0"


def one_line(text: str, lowercase: bool) -> str:
    """Return a text as one line for fastText."""
    line = text.lower() if lowercase else text
    return " ".join(line.replace(END_OF_LINE, " ").split())


class FastTextScorer:
    """Score a text with the probability of the model's positive label, in [0, 1].

    Raises
    ------
    FastTextFormatError
        If the file is not a complete supervised model.
    SettingsError
        If the model has no label `positive_label`.
    """

    column = "text"
    reads_arrow = True

    def __init__(self, settings: FastTextScorerSettings, model_path: str) -> None:
        self.settings = settings
        self._path = model_path
        check_fasttext_file(model_path)
        import fasttext  # after the check, and not before a model is used: its import takes a quarter of a second

        self._model = fasttext.load_model(model_path)
        labels = self._model.get_labels()
        if settings.positive_label not in labels:
            raise SettingsError(
                f"the fastText model {model_path!r} has no label {settings.positive_label!r}, "
                f"set positive_label to one of {labels}"
            )

    def score(self, texts: Sequence[str] | pa.Array) -> NDArray[np.float32]:
        """Return the probability of the positive label for each text, (n,); 0 if the model returns no label.

        Texts are strings, (n,), in an Arrow array or a sequence; in a sequence, a lone surrogate is read as "?".

        Raises
        ------
        FastTextFormatError
            If the model's numbers give no scores.
        """
        if not isinstance(texts, pa.Array):
            texts = pa.array([text.encode("utf-8", "replace") for text in texts], pa.large_binary())
            texts = texts.cast(pa.large_string())
        lines = fasttext_lines(texts, self.settings.lowercase)
        every_label, any_probability = -1, 0.0
        try:
            labels, probabilities = self._model.f.multilinePredict(lines, every_label, any_probability, "strict")
        except RuntimeError as error:  # fastText found a NaN
            raise FastTextFormatError(
                f"{self._path} is damaged: its numbers give no scores: {error} Copy or download it again"
            ) from error
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
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            f"{POSITIVE if is_positive else NEGATIVE} {one_line(text, lowercase).replace(LABEL_PREFIX, ' ')}\n"
            for text, is_positive in zip(texts, positive, strict=True)
        ]
        examples, model = Path(folder) / "examples.txt", Path(folder) / "model.bin"
        if settings.autotune_seconds is None:
            options = _training_options(settings)
        else:
            validation = Path(folder) / "validation.txt"
            validating, lines = _validation_part(lines, settings.seed)
            _write_lines(validation, validating)
            options = {
                "autotuneValidationFile": str(validation),
                "autotuneDuration": settings.autotune_seconds,
                "seed": settings.seed,
            }
        _write_lines(examples, lines)
        import fasttext

        train_in_new_process(str(examples), str(model), options)
        return fasttext.load_model(str(model))


def _training_options(settings: FastTextTrainingSettings) -> dict[str, float | int | str]:
    return {
        "epoch": settings.epochs,
        "lr": settings.learning_rate,
        "dim": settings.dimensions,
        "wordNgrams": settings.word_ngrams,
        "bucket": settings.buckets,
        "minCount": 2,
        "seed": settings.seed,
    }


def _validation_part(lines: list[str], seed: int) -> tuple[list[str], list[str]]:
    """Return a fifth of the examples, and the rest, both in random order."""
    order = np.random.default_rng(seed).permutation(len(lines))
    fifth = max(1, len(lines) // 5)
    return [lines[index] for index in order[:fifth]], [lines[index] for index in order[fifth:]]


def _write_lines(path: Path, lines: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(lines)
