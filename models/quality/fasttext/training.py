"""Train one fastText model in a new process: `python -m` this module with examples, model and options.

Training is reproducible on one thread only, and on one thread fastText 0.9.3 initialises only the first tenth of its
word vectors (`DenseMatrix::uniform`). The rest is uninitialised memory, sometimes NaN. The new process has an allocator
that zeroes memory, so the rest is always zero.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from fineweb_mask.models.errors import ModelError

ZEROED_MEMORY = {"MALLOC_PERTURB_": "255"}  # glibc fills each block with the complement of this byte, 0


class FastTextTrainingError(ModelError):
    """The training process failed."""


def train_in_new_process(examples: str, model: str, options: Mapping[str, float]) -> None:
    """Train a supervised model on a file of examples in fastText's format, one per line, and write it to `model`.

    `options` are arguments of `fasttext.train_supervised`. If the process fails, FastTextTrainingError ends with its
    error output.
    """
    command = [sys.executable, "-m", __name__, examples, model, json.dumps(dict(options))]
    finished = subprocess.run(  # noqa: S603 - this interpreter, this module
        command, env={**os.environ, **ZEROED_MEMORY}, capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        said = finished.stderr.strip()[-500:] or f"its process ended with {finished.returncode}"
        if finished.returncode == -signal.SIGKILL:
            said = "the system ended its process, most likely for its memory: free some, or set fewer buckets"
        raise FastTextTrainingError(
            f"fastText could not be trained: {said}; check the labels and the training settings"
        )


def _main(examples: str, model: str, options: str) -> None:
    import fasttext

    fasttext.train_supervised(examples, thread=1, verbose=0, **json.loads(options)).save_model(model)


if __name__ == "__main__":
    _main(*sys.argv[1:])
