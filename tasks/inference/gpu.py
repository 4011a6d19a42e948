"""Limit the tasks that use this process's GPU to one at a time.

A process uses the first GPU that CUDA_VISIBLE_DEVICES leaves visible. On Ray each job has its own GPU, also where
one machine has several.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_gpu = threading.Lock()


def torch_device(setting: str) -> "torch.device":
    """Return the device that a setting names, as `choose_device` does."""
    import torch

    from fineweb_mask.models.forward.device import choose_device

    return torch.device(choose_device(setting))


@contextmanager
def gpu_slot(device: "str | torch.device") -> Iterator[None]:
    """Have the GPU alone while the block runs, if the device is one; a task without need of it never waits."""
    if not str(device).startswith("cuda"):
        yield
        return
    with _gpu:
        yield
