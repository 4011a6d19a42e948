"""Register every selector: what it reads, whether it draws at random, what it costs and where it comes from.

A selector of your own is a function from `Problem` to `Solution` in `models/selection/selectors/` and an entry here; if
it has options, they are a class in `options.py` and a field of `SelectionSettings` with the selector's name.

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
    maximises: str  # in a few words, for tables
    source: str = ""  # publication or published code
    reads: Set[Reads] = frozenset({"quality", "vectors"})
    is_sampled: bool = False  # whether what is selected depends on the seed; else ties are by position
    is_slow: bool = False  # whether a comparison leaves it out unless it is named


SELECTORS: dict[str, SelectorEntry] = {
    "mean_field": SelectorEntry(
        "solvers.mean_field", "the objective J, with a bound on what is possible", "this project (docs/algorithm.md)"
    ),
    "policy_gradient": SelectorEntry(
        "solvers.policy_gradient",
        "the objective J, as the paper learns it",
        "DATAMASK, arXiv 2512.24265",
        is_sampled=True,
        is_slow=True,
    ),
    "top_quality": SelectorEntry(
        "selectors.sampling", "the quality", "thresholds of any classifier", reads={"quality"}
    ),
    "random": SelectorEntry(
        "selectors.sampling", "nothing", "the baseline of every paper", reads=frozenset(), is_sampled=True
    ),
    "quality_sampling": SelectorEntry(
        "selectors.sampling",
        "the quality, softened by a temperature",
        "QuRating, arXiv 2402.09739",
        reads={"quality"},
        is_sampled=True,
    ),
    "semdedup": SelectorEntry(
        "selectors.clusters",
        "unlikeness to the documents kept in the same cluster",
        "SemDeDup, arXiv 2303.09540",
        is_sampled=True,
    ),
    "greedy": SelectorEntry(
        "solvers.greedy", "the objective J, one document at a time", "Nemhauser, Wolsey and Fisher 1978"
    ),
    "quadmix": SelectorEntry(
        "selectors.scores",
        "a sampling function of each document's rank in its group",
        "QuaDMix, arXiv 2504.16511",
        reads={"scores", "groups"},
        is_sampled=True,
    ),
    "dsir": SelectorEntry(
        "selectors.sampling",
        "likeness of its n-grams to the target texts, by importance weights",
        "DSIR, arXiv 2302.03169",
        reads={"text"},
        is_sampled=True,
    ),
    "d4": SelectorEntry(
        "selectors.clusters",
        "distance from the centre, after semantic deduplication",
        "D4, arXiv 2308.12284",
        is_sampled=True,
    ),
    "betr": SelectorEntry(
        "selectors.targets",
        "rank by likeness to target examples, the best of all examples",
        "BETR, arXiv 2507.12466",
        reads={"targets"},
    ),
    "rds": SelectorEntry(
        "selectors.targets",
        "likeness to the nearest example, the tasks or the examples of one in turn",
        "RDS+, arXiv 2503.01807",
        reads={"targets"},
    ),
    "kmq": SelectorEntry(
        "selectors.clusters",
        "quality, sampled within every cluster",
        "Diversify and Conquer, arXiv 2409.11378",
        is_sampled=True,
    ),
    "odis": SelectorEntry(
        "selectors.scores", "each principal component of the scores in turn", "ODiS, arXiv 2510.18909", reads={"scores"}
    ),
    "ingenious": SelectorEntry(
        "selectors.ingenious",
        "gain of coverage within random parts, sampled",
        "INGENIOUS, arXiv 2305.06677",
        reads={"vectors"},
        is_sampled=True,
    ),
    "quad": SelectorEntry(
        "selectors.clusters",
        "the quality of documents of promising clusters",
        "Quad, arXiv 2409.16986",
        is_sampled=True,
    ),
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
