"""GPU work waits for a slot of its host, which the server keeps."""

import threading

import torch
from prefect import flow, task
from prefect.client.orchestration import get_client

from fineweb_mask.tasks.inference.gpu import gpu_slot, offer_slots, slot_name


def test_tasks_take_turns_on_one_gpu(server, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    at_once, most, lock = 0, [], threading.Lock()

    @task
    def work(name):
        nonlocal at_once
        with gpu_slot("cuda:0"):
            with lock:
                at_once += 1
                most.append(at_once)
            threading.Event().wait(0.2)
            with lock:
                at_once -= 1

    @flow
    def three():
        offer_slots()
        for future in [work.submit(name) for name in "abc"]:
            future.result()
        with get_client(sync_client=True) as client:
            return client.read_global_concurrency_limit_by_name(slot_name()).limit

    assert three() == 1
    assert most == [1, 1, 1]
