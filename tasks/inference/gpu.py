"""One GPU's worth of work at a time on each GPU of a host, over all runs that share a Prefect server.

The slot is taken inside a task's body, so that a cached hit never waits for one. It is named after the host, and there
are as many as the host has GPUs. A process that is killed gives its slot back when its lease runs out.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.context import TaskRunContext

LEASE_SECONDS = 60


def slot_name() -> str:
    """Return the name of this host's limit."""
    return f"gpu:{socket.gethostname()}"


def offer_slots() -> None:
    """Tell the server how many GPUs this host has; without any, nothing is limited."""
    if gpus := torch.cuda.device_count():
        with get_client(sync_client=True) as client:
            client.upsert_global_concurrency_limit_by_name(slot_name(), gpus)


@contextmanager
def gpu_slot(device: str) -> Iterator[None]:
    """Hold a slot of this host while the block runs, if the device is a GPU and Prefect runs the task."""
    if not device.startswith("cuda") or TaskRunContext.get() is None:
        yield
        return
    with concurrency(slot_name(), occupy=1, lease_duration=LEASE_SECONDS):
        yield
