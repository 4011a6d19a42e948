"""Train one fastText model in a new process: `python -m` this module with examples, model and options.

Training is reproducible on one thread only, and on one thread fastText 0.9.3 initialises only the first tenth of its
word vectors (`DenseMatrix::uniform`). The rest is uninitialised memory, sometimes NaN. The new process has an allocator
that zeroes memory, so the rest is always zero.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from threading import Timer

from fineweb_mask.models.errors import ModelError

GRACE_SECONDS = 5.0
"""How much longer than it was allowed a search for settings may take before it is ended from outside."""
ZEROED_MEMORY = {"MALLOC_PERTURB_": "255"}  # glibc fills each block with the complement of this byte, 0


class FastTextTrainingError(ModelError):
    """The training process failed."""


def train_in_new_process(examples: str, model: str, options: Mapping[str, float | int | str]) -> None:
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

    found = json.loads(options)
    if "autotuneDuration" not in found:
        fasttext.train_supervised(examples, thread=1, verbose=0, **found).save_model(model)
        return
    _limit_memory()
    # A search that lasts longer is ended by the signal at which it goes on with the best that it has found. It ends by
    # itself, by a thread that it starts; but where this thread runs before its starter has noted that the search goes
    # on (`Autotune::startTimer` of fastText 0.9.3), the thread ends at once, and the search has no end. To a search
    # that has ended, while the best is trained again, the signal means nothing.
    timer = Timer(found["autotuneDuration"] + GRACE_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    trained = fasttext.train_supervised(examples, thread=1, verbose=0, **found)
    timer.cancel()
    trained.save_model(model)


def _limit_memory() -> None:
    """Let the process have half of this machine's memory; fastText's search goes on after a model that is larger.

    It tries models of up to 40 GB.
    """
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [limit for limit in (half, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))


if __name__ == "__main__":
    _main(*sys.argv[1:])
