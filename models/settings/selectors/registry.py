"""Register every selector: where it is, what it reads, and whether it is slow.

A selector of your own is a function from `Problem` to `Solution` in `models/selection/selectors/` and an entry here; if
it has options, they are a field of `SelectionSettings` with the selector's name.

>>> from fineweb_mask.models.settings.selectors.registry import SELECTORS
>>> sorted(name for name, entry in SELECTORS.items() if "targets" in entry.reads)
['betr', 'rds']
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, Literal

Reads = Literal["quality", "scores", "vectors", "groups", "targets", "text"]
"""What a selector reads of the documents, except the budget and the tokens.

quality: the combined score. scores: the columns of all scorers. groups: `selection.group_column`, where it is set.
targets: the vectors of `selection.targets`. text: the texts, compared with those of `selection.targets`.
"""


@dataclass(frozen=True)
class SelectorEntry:
    """What is known of a selector before its module is imported."""

    solve: str | Callable[[Any], Any]  # from Problem to Solution; or the module in models/selection/ of `solve_NAME`
    reads: Set[Reads] = frozenset({"quality", "vectors"})
    is_slow: bool = False  # whether a comparison leaves it out unless it is named


SELECTORS: dict[str, SelectorEntry] = {
    "mean_field": SelectorEntry("solvers.mean_field"),
    "policy_gradient": SelectorEntry("solvers.policy_gradient", is_slow=True),
    "top_quality": SelectorEntry("selectors.sampling", reads={"quality"}),
    "random": SelectorEntry("selectors.sampling", reads=frozenset()),
    "quality_sampling": SelectorEntry("selectors.sampling", reads={"quality"}),
    "semdedup": SelectorEntry("selectors.clusters"),
    "greedy": SelectorEntry("solvers.greedy"),
    "quadmix": SelectorEntry("selectors.scores", reads={"quality", "groups"}),
    "dsir": SelectorEntry("selectors.sampling", reads={"text"}),
    "d4": SelectorEntry("selectors.clusters"),
    "betr": SelectorEntry("selectors.targets", reads={"targets"}),
    "rds": SelectorEntry("selectors.targets", reads={"targets"}),
    "kmq": SelectorEntry("selectors.clusters"),
    "odis": SelectorEntry("selectors.scores", reads={"scores"}),
    "ingenious": SelectorEntry("selectors.ingenious", reads={"vectors"}),
    "quad": SelectorEntry("selectors.clusters"),
}
"""Every selector by the name that `selection.solver` and `compare --variants` take."""


def missing_inputs(name: str, *, has_targets: bool, scorers: int) -> str | None:
    """Return what a selector reads that there is not, with the setting that provides it; None if nothing is missing.

    >>> missing_inputs("rds", has_targets=False, scorers=1)
    'it reads target examples: set selection.targets'
    """
    reads = SELECTORS[name].reads
    if not has_targets and reads & {"targets", "text"}:
        return "it reads target examples: set selection.targets"
    if "scores" in reads and scorers < 1:
        return "it reads the columns of scorers: set quality.scorers"
    return None
