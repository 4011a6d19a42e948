"""Without a GPU, or without Prefect, no slot is requested."""

import pytest

from fineweb_mask.tasks.inference.gpu import gpu_slot


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_without_prefect_or_a_gpu_no_slot_is_requested(monkeypatch, device):
    monkeypatch.setattr("prefect.concurrency.sync.concurrency", lambda *_, **__: pytest.fail("a slot was asked for"))
    with gpu_slot(device):
        pass
