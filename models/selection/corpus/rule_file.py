"""Save the rule of a corpus's selection as one safetensors file, and load it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.selection.corpus.rule import Rule

FORMAT = "fineweb-mask rule 1"
"""What the file's metadata say it is."""


class RuleFileError(DataError):
    """A file holds no rule."""


class SavedRule(NamedTuple):
    """A rule, and what was noted with it."""

    rule: Rule
    notes: dict[str, Any]


def save_rule(path: Path, rule: Rule, notes: Mapping[str, Any]) -> None:
    """Write a rule, and notes on where it comes from, which JSON can hold.

    Numbers are tensors of the file; names are in its metadata.
    """
    arrays = rule.arrays()
    names = {name: array for name, array in arrays.items() if array.dtype.kind in "SU"}
    numbers = {name: np.ascontiguousarray(array) for name, array in arrays.items() if name not in names}
    kinds = {name: [array.dtype.str, array.tolist()] for name, array in names.items()}
    text = json.dumps(kinds, default=bytes.decode)
    save_file(numbers, path, metadata={"format": FORMAT, "names": text, "notes": json.dumps(dict(notes))})


def load_rule(path: Path, device: torch.device) -> SavedRule:
    """Read a rule that `save_rule` wrote.

    Raises
    ------
    RuleFileError
        If the file cannot be read, or holds none.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        raise RuleFileError(f"{path} cannot be read as a rule: {error}") from error
    if metadata.get("format") != FORMAT:
        raise RuleFileError(f"{path} holds no rule: write one with `fineweb-mask rule export`")
    for name, (kind, values) in json.loads(metadata["names"]).items():
        arrays[name] = np.array(values, dtype=np.str_).astype(np.dtype(kind)) if values else np.empty(0, dtype=kind)
    return SavedRule(Rule.of_arrays(arrays, device), json.loads(metadata["notes"]))
