"""The device that a model runs on, and the type that it computes in."""

import pytest
import torch

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.forward import device
from fineweb_mask.models.forward.device import check_device, choose_device, fast_dtype


@pytest.mark.parametrize(("gpus", "auto"), [(0, "cpu"), (3, "cuda:0")])
def test_auto_is_the_first_gpu_or_the_processor(monkeypatch, gpus, auto):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert [choose_device(name) for name in ("auto", "cuda:1", "cpu")] == [auto, "cuda:1", "cpu"]


@pytest.mark.parametrize(("name", "gpus"), [("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_that_is_not_there_is_named_with_its_setting(monkeypatch, name, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(SettingsError, match=rf"^embedding\.device: {name} needs a GPU .*, there are {gpus}"):
        check_device(name, "embedding.device")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus + 1)
    for one in (name, "auto", "cpu"):
        check_device(one, "embedding.device")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"architecture": "aarch64", "bf16": True}, torch.bfloat16),
        ({}, torch.float32),
    ],
)
def test_bfloat16_is_computed_in_where_the_processor_has_it(monkeypatch, capabilities, expected):
    monkeypatch.setattr(device.torch.cpu, "get_capabilities", lambda: capabilities)
    assert fast_dtype("cpu") == expected
