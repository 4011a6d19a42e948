"""Trains one fastText model in a process of its own: `python -m` this module with examples, model and options.

On one thread, which is what makes training reproducible, fastText 0.9.3 fills only the first tenth of its word vectors
(`DenseMatrix::uniform`); the rest is whatever the allocator hands out: left-overs, and now and then NaN. In a process
whose allocator zeroes what it hands out, it is zero, always.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from fineweb_mask.models.errors import ModelError

FRESH_MEMORY = {"MALLOC_PERTURB_": "255"}  # glibc fills every block with the complement of this byte, 0


class FastTextTrainingError(ModelError):
    """The training process failed."""


def train_in_new_process(examples: str, model: str, options: Mapping[str, float | int | str]) -> None:
    """Train a supervised model on a file of examples, one per line, and save it.

    Parameters
    ----------
    examples
        Path of the examples in fastText's format.
    model
        Path that the model is written to.
    options
        Arguments of `fasttext.train_supervised`.

    Raises
    ------
    FastTextTrainingError
        With what the process printed, if it fails.
    """
    command = [sys.executable, "-m", __name__, examples, model, json.dumps(dict(options))]
    finished = subprocess.run(  # noqa: S603 - this interpreter, this module
        command, env={**os.environ, **FRESH_MEMORY}, capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        raise FastTextTrainingError(f"fastText could not be trained: {finished.stderr.strip()[-500:]}")


def _main(examples: str, model: str, options: str) -> None:
    import fasttext

    fasttext.train_supervised(examples, thread=1, verbose=0, **json.loads(options)).save_model(model)


if __name__ == "__main__":
    _main(*sys.argv[1:])
