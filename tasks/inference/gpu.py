"""Limit GPU tasks to one per GPU of a host, over all runs that share a Prefect server.

A task acquires the slot inside its body, so a cached task never waits for one. Slots are a global concurrency limit
named after the host, with as many slots as the host has GPUs. The slot of a killed process is released when its lease
expires.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LEASE_SECONDS = 60


def slot_name() -> str:
    """Return the name of this host's concurrency limit."""
    return f"gpu:{socket.gethostname()}"


def offer_slots() -> None:
    """Set this host's concurrency limit to its number of GPUs; no limit without GPUs."""
    import torch
    from prefect.client.orchestration import get_client

    if gpus := torch.cuda.device_count():
        with get_client(sync_client=True) as client:
            client.upsert_global_concurrency_limit_by_name(slot_name(), gpus)


def torch_device(setting: str) -> "torch.device":
    """Return the device that a setting names, as `choose_device` does."""
    import torch

    from fineweb_mask.models.forward.device import choose_device

    return torch.device(choose_device(setting))


@contextmanager
def gpu_slot(device: "str | torch.device") -> Iterator[None]:
    """Hold one of this host's slots while the block runs, if the device is a GPU and the caller is a Prefect task."""
    if not str(device).startswith("cuda"):
        yield
        return
    from prefect.concurrency.sync import concurrency
    from prefect.context import TaskRunContext

    if TaskRunContext.get() is None:
        yield
        return
    with concurrency(slot_name(), occupy=1, lease_duration=LEASE_SECONDS):
        yield
