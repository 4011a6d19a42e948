"""Name settings that are gone, with what to write instead."""

from typing import Any

REMOVED: dict[str, str] = {
    "selection.block_budget": "is gone: leave it out, every block gives select_ratio",
    "selection.dsir": "is gone: leave it out, all examples of selection.targets are one target",
    "selection.given": "is gone: leave it out, and select from the new documents and the old ones together",
    "selection.groups.max_repeats": "is gone: leave it out, and repeat a group's documents in training",
    "selection.metrics: cluster_coverage": "is gone: write facility",
    "selection.quad": "is gone: leave it out, it reads quality: the model belongs to quality.scorers",
    "selection.quadmix.max_repeats": "is gone: leave it out, and repeat documents in training",
    "selection.semdedup": "is gone: leave it out, and set near_duplicates.forbid and near_duplicates.threshold",
    "selection.weigh_by": "is gone: leave it out, quality and diversity are means over what budget_by counts",
}
"""By key, without indices of lists, or by `key: value`, in alphabetical order: "is gone: " and what to write instead."""


def advice_on(key: str, value: Any = None) -> str | None:  # noqa: ANN401
    """Return what to write instead of a setting, or of one of its values, that is gone; None if it never was there.

    Parameters
    ----------
    key
        Dotted name, such as `quality.scorers.0.share`.
    value
        What the recipe gives it.

    Examples
    --------
    >>> REMOVED["answer.colour: mauve"] = "write blue"
    >>> advice_on("answer.0.colour", "mauve"), advice_on("answer.0.colour", "red")
    ('write blue', None)
    >>> del REMOVED["answer.colour: mauve"]
    """
    plain = ".".join(part for part in key.split(".") if not part.isdigit())
    section, _, name = plain.rpartition(".")
    found = (REMOVED.get(one) for one in (plain, f"{plain}: {value}", f"{section}: {name}"))
    return next((advice for advice in found if advice is not None), None)
