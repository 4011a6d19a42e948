"""Choose the device that a model runs on and the type that it computes in."""

import torch

from fineweb_mask.models.errors import SettingsError


def choose_device(device: str) -> str:
    """Return the first GPU, or the CPU, for `auto`; return any other name unchanged."""
    if device != "auto":
        return device
    return "cuda:0" if torch.cuda.device_count() else "cpu"


def check_device(device: str, setting: str) -> None:
    """Check that this machine has the GPU that a setting names.

    Raises
    ------
    SettingsError
        If it has not.
    """
    kind, _, number = device.partition(":")
    if kind == "cuda" and int(number or 0) >= (count := torch.cuda.device_count()):
        raise SettingsError(f"{setting}: {device} needs a GPU that torch can use, there are {count}: set it to auto")


def fast_dtype(device: str) -> torch.dtype:
    """Return bfloat16 if the device has instructions for it, else float32."""
    if device.startswith("cuda"):
        fast = torch.cuda.is_bf16_supported(False)
    else:
        fast = any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.bfloat16 if fast else torch.float32
