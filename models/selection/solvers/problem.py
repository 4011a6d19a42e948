"""What a solver is given and what it gives back."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fineweb_mask.models.runtime.stopping import raise_if_stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from fineweb_mask.models.selection.objective import Objective
    from fineweb_mask.models.selection.rows import Rows
    from fineweb_mask.models.settings.selection import SelectionSettings


@dataclass
class History:
    """The best objective so far, step by step: (step, seconds since the start, objective)."""

    progress: Callable[[int, float, float], None] | None = None  # called with each entry
    entries: list[tuple[int, float, float]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def record(self, step: int, objective: float) -> None:
        """Note the objective reached at a step; a worse one than before leaves the best standing."""
        raise_if_stopped()
        best = max(objective, self.entries[-1][2]) if self.entries else objective
        entry = (step, time.perf_counter() - self.started, best)
        self.entries.append(entry)
        if self.progress is not None:
            self.progress(*entry)


@dataclass
class Problem:
    """One selection to solve."""

    rows: Rows
    objective: Objective
    settings: SelectionSettings
    generator: torch.Generator  # on the rows' device, seeded
    history: History = field(default_factory=History)
    start: Tensor | None = None  # (n,) probabilities that solved a similar problem, for `mean_field` to start from


@dataclass
class Solution:
    """A solver's answer."""

    mask: Tensor  # (n,) bool, K of them true
    inclusion: Tensor  # (n,) float32: learned logit or probability; larger is more wanted
    relaxed: Tensor | None = None  # (n,) probabilities that sum to K, from which the bound is computed
