"""Say what to write instead of settings and values that recipes once had.

>>> instead_of("selection.blocks", "blocks", "mixed")
'leave it out: blocks follow the shards; block_budget: price selects more from richer ones'
"""

from collections.abc import Mapping
from typing import Any

SHUFFLED = (
    "the dataset is not shuffled any more, an export is: write materialize.export: [{format: parquet, shuffle: true, "
    "seed: 0}], which puts all documents in random order"
)

REMOVED: dict[str, str] = {
    "embedding.keep": "leave it out: vectors are always stored",
    "materialize.seed": SHUFFLED,
    "materialize.shuffle": SHUFFLED,
    "selection.blocks": "leave it out: blocks follow the shards; block_budget: price selects more from richer ones",
    "selection.density_pruning": "leave it out, with its solver: d4 also prefers what is far from its cluster's centre",
    "selection.gist": "leave it out, with its solver: use mean_field with near_duplicates.forbid: true",
    "selection.ssl_prototypes": "leave it out, with its solver: d4 with d4.dedup_ratio: 1 has the same rule",
}
"""What to write instead of a setting, by its dotted key."""

REMOVED_VALUES: dict[tuple[str, str], str] = {
    ("selection.metrics", "logdet"): "use disf, or pairwise and facility together, which cover more",
    ("selection.metrics", "vendi"): "use disf, or pairwise and facility together, which cover more",
    ("selection.solver", "density_pruning"): "use d4, which also prefers what is far from its cluster's centre",
    ("selection.solver", "gist"): "use mean_field with near_duplicates.forbid: true",
    ("selection.solver", "ssl_prototypes"): "use d4 with d4.dedup_ratio: 1, which has the same rule",
    ("selection.solver", "vendi"): "use mean_field, with metrics: disf or pairwise and facility together",
}
"""What to write instead of a value, by the dotted key of its setting and the value."""


def instead_of(key: str, name: object, value: object) -> str | None:
    """Return what to write instead of a setting, or of its value or the name in it; None if it never was one."""
    if key in REMOVED:
        return REMOVED[key]
    found = (
        text
        for (setting, former), text in REMOVED_VALUES.items()
        if key.startswith(setting) and former in (name, value)
    )
    return next(found, None)


def without_removed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe, by section, without the settings that are gone: one that an earlier version wrote down.

    >>> without_removed({"selection": {"lamb": 0.3, "blocks": "by_shard"}})
    {'selection': {'lamb': 0.3}}
    """
    return {
        name: {key: value for key, value in section.items() if f"{name}.{key}" not in REMOVED}
        if isinstance(section, Mapping)
        else section
        for name, section in recipe.items()
    }
