"""Say what to write instead of settings and values that recipes once had."""

REMOVED: dict[str, str] = {
    "embedding.keep": "leave it out: vectors are always stored",
    "materialize.seed": "leave it out: an export puts documents in random order, and has a seed",
    "materialize.shuffle": "leave it out: an export puts documents in random order (materialize.export)",
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
