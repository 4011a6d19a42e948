"""The same selection whatever the number of cores."""

import os
import subprocess
import sys

import torch

from fineweb_mask.models.runtime.threads import THREADS, same_threads

SELECT = """
import hashlib, numpy as np
from fineweb_mask.models.selection.selector import select
random = np.random.default_rng(0)
features = random.normal(size=(2_500, 768)).astype(np.float32)
selection = select(features, random.random(2_500), {"lamb": 0.5, "metrics": {"facility": 1.0, "disf": 1.0}})
print(hashlib.sha256(selection.inclusion.tobytes() + selection.indices.tobytes()).hexdigest())
"""


def test_a_selection_is_the_same_whatever_the_environment_says_of_threads() -> None:
    found = {
        threads: subprocess.check_output([sys.executable, "-c", SELECT], env=os.environ | {"OMP_NUM_THREADS": threads})
        for threads in ("1", "2", "4")
    }
    assert len(set(found.values())) == 1


def test_the_number_is_put_back() -> None:
    before = torch.get_num_threads()

    @same_threads()
    def inside() -> int:
        return torch.get_num_threads()

    assert inside() == inside() == THREADS
    assert torch.get_num_threads() == before
