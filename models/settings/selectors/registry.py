"""Register every selector: what it reads, whether it draws at random, what it costs and where it comes from.

A selector of your own is a function from `Problem` to `Solution` in `models/selection/selectors/` and an entry here; if
it has options, they are a class in `options.py` and a field of `SelectionSettings` with the selector's name.

>>> from fineweb_mask.models.settings.selectors.registry import SELECTORS
>>> sorted(name for name, entry in SELECTORS.items() if "targets" in entry.reads)
['betr', 'rds']
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Reads = Literal["quality", "scores", "vectors", "groups", "targets", "text"]
"""What a selector reads of the documents, except the budget and the tokens.

quality: the combined score. scores: the columns of all scorers. groups: `selection.group_column`, where it is set.
targets: the vectors of `selection.targets`. text: the texts, compared with those of `selection.targets`.
"""


@dataclass(frozen=True)
class SelectorEntry:
    """What is known of a selector before its module is imported; n documents of d dimensions, K selected."""

    solve: str | Callable[[Any], Any]  # from Problem to Solution: "module:function" in models/selection/, or itself
    maximises: str  # in a few words, for tables
    cost: str = ""  # operations for each document, in their leading terms
    source: str = ""  # publication or published code
    reads: frozenset[Reads] = frozenset({"quality", "vectors"})
    is_sampled: bool = False  # whether what is selected depends on the seed; else ties are by position
    is_slow: bool = False  # whether a comparison leaves it out unless it is named


OWN = "this project (docs/algorithm.md)"

SELECTORS: dict[str, SelectorEntry] = {
    "mean_field": SelectorEntry(
        "solvers.mean_field:solve_mean_field",
        "the objective J, with a bound on what is possible",
        "some 30 gradients of J: d each for pairwise, d^2 for disf, the length of a list for facility",
        OWN,
    ),
    "policy_gradient": SelectorEntry(
        "solvers.policy_gradient:solve_policy_gradient",
        "the objective J, as the paper learns it",
        "steps x masks x its share of the objective of a batch",
        "DATAMASK, arXiv 2512.24265",
        is_sampled=True,
        is_slow=True,
    ),
    "top_quality": SelectorEntry(
        "selectors.sampling:solve_top_quality",
        "the quality",
        "log n",
        "thresholds of any classifier",
        reads=frozenset({"quality"}),
    ),
    "random": SelectorEntry(
        "selectors.sampling:solve_random",
        "nothing",
        "1",
        "the baseline of every paper",
        reads=frozenset(),
        is_sampled=True,
    ),
    "quality_sampling": SelectorEntry(
        "selectors.sampling:solve_quality_sampling",
        "the quality, softened by a temperature",
        "log n",
        "QuRating, arXiv 2402.09739",
        reads=frozenset({"quality"}),
        is_sampled=True,
    ),
    "semdedup": SelectorEntry(
        "selectors.clusters:solve_semdedup",
        "unlikeness to the documents kept in the same cluster",
        "c d for c clusters, and n d / c",
        "SemDeDup, arXiv 2303.09540",
        is_sampled=True,
    ),
    "greedy": SelectorEntry(
        "solvers.greedy:solve_greedy",
        "the objective J, one document at a time",
        "K d for pairwise",
        "Nemhauser, Wolsey and Fisher 1978",
    ),
    "quadmix": SelectorEntry(
        "selectors.scores:solve_quadmix",
        "a sampling function of each document's rank in its group",
        "log n",
        "QuaDMix, arXiv 2504.16511",
        reads=frozenset({"scores", "groups"}),
        is_sampled=True,
    ),
    "dsir": SelectorEntry(
        "selectors.sampling:solve_dsir",
        "likeness of its n-grams to the target texts, by importance weights",
        "its n-grams, log n",
        "DSIR, arXiv 2302.03169",
        reads=frozenset({"text"}),
        is_sampled=True,
    ),
    "d4": SelectorEntry(
        "selectors.clusters:solve_d4",
        "distance from the centre, after semantic deduplication",
        "that of semdedup, and c d again",
        "D4, arXiv 2308.12284",
        is_sampled=True,
    ),
    "betr": SelectorEntry(
        "selectors.targets:solve_betr",
        "rank by likeness to target examples, the best of all examples",
        "t (d + log n) for t examples",
        "BETR, arXiv 2507.12466",
        reads=frozenset({"targets"}),
    ),
    "rds": SelectorEntry(
        "selectors.targets:solve_rds",
        "likeness to the nearest example, the tasks or the examples of one in turn",
        "t d for t examples, log n for each task, or example of one",
        "RDS+, arXiv 2503.01807",
        reads=frozenset({"targets"}),
    ),
    "kmq": SelectorEntry(
        "selectors.clusters:solve_kmq",
        "quality, sampled within every cluster",
        "c d for c clusters",
        "Diversify and Conquer, arXiv 2409.11378",
        is_sampled=True,
    ),
    "odis": SelectorEntry(
        "selectors.scores:solve_odis",
        "each principal component of the scores in turn",
        "p^2 for p scores, log n for each component",
        "ODiS, arXiv 2510.18909",
        reads=frozenset({"scores"}),
    ),
    "ingenious": SelectorEntry(
        "selectors.ingenious:solve_ingenious",
        "gain of coverage within random parts, sampled",
        "p (d + p) for parts of p documents",
        "INGENIOUS, arXiv 2305.06677",
        reads=frozenset({"vectors"}),
        is_sampled=True,
    ),
    "quad": SelectorEntry(
        "selectors.clusters:solve_quad",
        "the quality of documents of promising clusters",
        "c d for c clusters",
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
