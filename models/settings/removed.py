"""Say what to write instead of a setting that is gone.

>>> REMOVED["selection.mean_field.n_near"]
'it is 256 for all recipes now: leave it out'
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.settings.pipeline import PipelineSettings

SCORERS = ("quality.scorers.*", "selection.quad.scorer")
ALL_OF_A_TEXT = "all of a text is read: leave it out"
CLUSTERS = "there are as many clusters as the square root of the documents: leave it out"
DEVICE = "set the environment variable CUDA_VISIBLE_DEVICES: empty for the CPU, 1 for the second GPU"
HALVED = "it suits the device, and is halved where memory runs out: leave it out"
ORDERED = "training files are shuffled: use materialize.export, whose `shuffle` and `seed` order the documents"
COMPARED = "set ingest.near_threshold to its threshold; the rest follows from that"
INSTEAD: Mapping[str, str] = {
    "embedding.batch_tokens": HALVED,
    "embedding.chunk_documents": "it is 8192 for all recipes now: leave it out",
    "embedding.keep": "vectors are always stored: leave it out",
    "engine.address": "set the environment variable RAY_ADDRESS to it",
    "engine.cpus_per_gpu": "it is 1 for all recipes now: leave it out",
    "engine.gpus": "all GPUs of the cluster are used: leave it out",
    "engine.in_flight": "it follows from the size of the cluster: leave it out",
    "engine.scratch_bytes": "copies of a workspace's files are deleted when their job ends: leave it out",
    "ingest.minhash": COMPARED,
    "ingest.semantic": COMPARED,
    "materialize.seed": ORDERED,
    "materialize.shuffle": ORDERED,
    "materialize.threads": "DuckDB takes all cores: for less memory, lower materialize.memory_limit or engine.workers",
    "quality.scorers.*.index": "set `field` to the number of the column",
    "quality.scorers.*.max_chars": ALL_OF_A_TEXT,
    "quality.scorers.*.max_words": ALL_OF_A_TEXT,
    "quality.scorers.*.training": "labels are learned as `fineweb-mask train-quality` does by default: for other "
    "options, run that command, and set the scorer's `model` to its file",
    "selection.blocks": "blocks follow the shards: leave it out; block_budget: price selects more from richer ones",
    "selection.density_pruning": "that selector is gone: d4 also prefers what is far from its cluster's centre",
    "selection.gist": "that selector is gone: use mean_field with near_duplicates.forbid: true",
    "selection.mean_field.n_steps": "it follows from the metrics: leave it out",
    "selection.mean_field.swap_pool": "it follows from the metrics: leave it out",
    "selection.quality_weights": "set `weight` of each of quality.scorers; in Python, pass quality_weights to `select`",
    "selection.ssl_prototypes": "that selector is gone: use d4, which deduplicates first and then has the same rule",
    **{f"selection.{name}.n_clusters": CLUSTERS for name in ("semdedup", "quad")},
    **{f"{scorer}.batch_tokens": HALVED for scorer in SCORERS},
    **{f"{model}.device": DEVICE for model in ("embedding", *SCORERS)},
    **{f"{scorer}.standardise": "leave it out; instead of false, name the score in quality.raw" for scorer in SCORERS},
}
"""What to write where it is more than that a setting is a constant."""

REMOVED_VALUES: Mapping[tuple[str, str], str] = {
    ("quality.scorers.*.kind", "difference"): "use kind: column with `minus`, and name: difference",
    ("selection.metrics", "logdet"): "use disf, or pairwise and facility together, which cover more",
    ("selection.metrics", "vendi"): "use disf, or pairwise and facility together, which cover more",
    ("selection.solver", "density_pruning"): "d4 also prefers what is far from its cluster's centre",
    ("selection.solver", "gist"): "use mean_field with near_duplicates.forbid: true",
    ("selection.solver", "ssl_prototypes"): "use d4, which deduplicates first and then has the same rule",
    ("selection.solver", "vendi"): "use mean_field, with metrics: disf or pairwise and facility together",
}
"""What to write, by the key of a setting and a value that it had."""


def _constants(model: type[Settings], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of the constants of a section and of those in it, and what to write."""
    for name, value in model.CONSTANTS.items():
        fixed = json.dumps(value).strip('"')
        yield f"{before}{name}", f"it is {fixed} for all recipes now: leave it out"
    for name, field in model.model_fields.items():
        for section, place in sections_in(field.annotation, f"{before}{name}"):
            yield from _constants(section, f"{place}.")


def sections_in(annotation: Any, key: str = "") -> Iterator[tuple[type[Settings], str]]:  # noqa: ANN401
    """Yield the classes of the sections that a setting may hold, with their keys."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation, key
    inner = f"{key}.*" if get_origin(annotation) in {list, dict} else key
    for argument in get_args(annotation):
        yield from sections_in(argument, inner)


REMOVED: Mapping[str, str] = {**dict(_constants(PipelineSettings)), **INSTEAD}
"""What to write, by the key of a former setting; `*` stands for an index of a list or a name."""


def instead_of(key: Sequence[int | str]) -> str | None:
    """Return what to write instead of the setting of a key, by its parts; None if it never was one.

    >>> instead_of(["quality", "scorers", 0, "max_chars"])
    'all of a text is read: leave it out'
    """
    return next((text for removed, text in REMOVED.items() if _matches(removed, key)), None)


def instead_of_value(key: Sequence[int | str], value: object) -> str | None:
    """Return what to write instead of a value of a setting; None if it never was one."""
    found = ((removed, text) for (removed, former), text in REMOVED_VALUES.items() if former == value)
    return next((text for removed, text in found if _matches(removed, key)), None)


def _matches(pattern: str, key: Sequence[int | str]) -> bool:
    parts = pattern.split(".")
    return len(parts) == len(key) and all(part in {"*", str(one)} for part, one in zip(parts, key, strict=True))
