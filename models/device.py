"""Which device numeric work runs on."""

import torch


def choose_device(device: str) -> str:
    """Return the device that `auto` stands for on this machine; any other name is returned as it is."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"
