"""The same selection whatever the number of cores; and less memory for threads that have ended."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from fineweb_mask.models.runtime.arenas import limit_arenas
from fineweb_mask.models.runtime.threads import THREADS, same_threads

SELECT = """
import hashlib, numpy as np
from fineweb_mask.models.selection.selector import select
random = np.random.default_rng(0)
features = random.normal(size=(1_200, 256)).astype(np.float32)
selection = select(features, random.random(1_200), {"lamb": 0.5, "metrics": {"facility": 1.0, "disf": 1.0}})
print(hashlib.sha256(selection.inclusion.tobytes() + selection.indices.tobytes()).hexdigest())
"""


@pytest.mark.long
def test_a_selection_is_the_same_whatever_the_environment_says_of_threads():
    found = {
        threads: subprocess.check_output([sys.executable, "-c", SELECT], env=os.environ | {"OMP_NUM_THREADS": threads})
        for threads in ("1", "3")
    }
    assert len(set(found.values())) == 1


def test_the_number_is_put_back():
    before = torch.get_num_threads()

    @same_threads()
    def inside():
        return torch.get_num_threads()

    assert inside() == inside() == THREADS
    assert torch.get_num_threads() == before


def test_glibc_takes_the_limit_of_arenas_and_elsewhere_nothing_happens(monkeypatch):
    assert limit_arenas() == (platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert not limit_arenas()
