"""Score texts; run with `python -m`.

Usage: `python -m fineweb_mask.tasks.inference.scoring_worker MODELS SOCKET...`. MODELS is a JSON list of models, each
SOCKET an inherited file descriptor. The models are loaded once, and shared by a fork for each socket. A message is a
serialised Arrow batch of texts; its answer is `+` and the scores (scorers, rows) as float32, or `!` and an error.
"""

import json
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.processes.workers import serve

SCORES, ERROR = b"+", b"!"
TEXTS = pa.schema([pa.field("text", pa.large_string())])


def scoring(models: str) -> Callable[[bytes], bytes]:
    """Return the function that answers texts with their scores; where no model can be loaded, with the error."""
    try:
        loaded = [QualityModel.model_validate(model) for model in json.loads(models)]
        scorers = [load_scorer(model.settings, model.path) for model in loaded]
    except Exception as error:  # noqa: BLE001 - the client raises it
        described = _described(error)
        return lambda _: described

    def answer(message: bytes) -> bytes:
        try:
            texts = pa.ipc.read_record_batch(message, TEXTS)["text"]
            return SCORES + np.stack([scorer.score(texts) for scorer in scorers]).astype(np.float32).tobytes()
        except Exception as error:  # noqa: BLE001 - the client raises it
            return _described(error)

    return answer


def _described(error: Exception) -> bytes:
    return ERROR + f"{type(error).__name__}: {error}".encode()


if __name__ == "__main__":
    serve(scoring(sys.argv[1]), [int(socket) for socket in sys.argv[2:]])
