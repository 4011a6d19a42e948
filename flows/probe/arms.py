"""Read the arms of `fineweb-mask probe --arms`: selectors, changed selectors, and datasets."""

import re
from collections.abc import Iterator

from fineweb_mask.flows.recipe import RecipeError, parse_value, validate
from fineweb_mask.models.probe.settings import Arm

NAMED = re.compile(r"(?P<name>[^=/\[\]]+)=(?P<of>.+)", re.DOTALL)
CHANGED = re.compile(r"(?P<of>[^\[\]]*)\[(?P<changes>.*)\]", re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def parse_arms(text: str) -> list[Arm]:
    """Return the arms of a list separated by commas.

    An arm is a selector of `compare` (`random`), one with changed settings of the selection
    (`mean_field[lamb=0.5]`), or the path of a dataset (`data/other.parquet`). A name may stand before it:
    `theirs=data/other.parquet`. `random[shuffled=0.2]` has a fifth of its tokens exchanged at random: damage of a known
    size, beside which the other differences can be read.

    Raises
    ------
    RecipeError
        If one cannot be understood.

    Examples
    --------
    >>> [arm.name for arm in parse_arms("random,half=mean_field[lamb=0.5,metrics=disf],theirs=data/other.parquet")]
    ['random', 'half', 'theirs']
    """
    arms = [_parse_arm(part.strip()) for part in _split(text) if part.strip()]
    if len(arms) < 2:
        raise RecipeError(f"name at least two arms, such as mean_field,random; received {text!r}")
    return arms


def _split(text: str) -> Iterator[str]:
    """Yield the parts between the commas that are outside brackets."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character in "[{") - (character in "]}")
        if depth < 0:
            raise RecipeError(f"arms: a bracket is closed that was not opened: add one, in {text!r}")
        if character == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    if depth:
        raise RecipeError(f"arms: a bracket is not closed: add one, in {text!r}")
    yield text[start:]


def _parse_arm(text: str) -> Arm:
    named = NAMED.fullmatch(text)
    name, of = (named["name"].strip(), named["of"].strip()) if named else ("", text)
    changed = CHANGED.fullmatch(of)
    changes = {}
    if changed:
        of = changed["of"].strip()
        changes = dict(parse_value(part.strip(), f"arms: {text!r}") for part in _split(changed["changes"]))
    is_path = "/" in of or "." in of
    if not name:
        name = of.rstrip("/").rsplit("/", 1)[-1] if is_path else text.replace("]", "")
        name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", name)
    if not NAME.fullmatch(name):
        raise RecipeError(f"arms: {name!r} is not a name: use letters, digits and - _ . +")
    if is_path and changes:
        raise RecipeError(f"arms: {text!r}: a dataset takes no settings in brackets")
    if is_path:
        return Arm(name=name, path=of)
    shuffled = changes.pop("shuffled", 0.0)
    return validate(Arm, {"name": name, "selector": of, "changes": changes, "shuffled": shuffled})
