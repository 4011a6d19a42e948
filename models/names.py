"""Find a column by its name, another spelling or its path within others; tell a file whose name holds its key."""

import re
import unicodedata
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

TAGGED = re.compile(r"[.][0-9a-f]{16}(?=[./]|$)")
"""A tag in a path, with the dot before it, that tells what the file was made of: such a file is never replaced."""


@lru_cache(maxsize=100_000)
def alike(name: str) -> str:
    """Return what is the same of all spellings of a column's name: case, Unicode form and spaces around it aside.

    >>> alike(" Source") == alike("SOURCE"), alike("cafe\u0301") == alike("Caf\u00e9")
    (True, True)
    """
    return unicodedata.normalize("NFC", name).strip().lower()


def find(name: str, names: Collection[str]) -> str | None:
    """Return a name among others: itself, or else the only other spelling of it.

    >>> find("url", ["URL", "Source"]), find("source", ["Source", "source"]), find("id", ["Id", "ID"])
    ('URL', 'source', None)
    """
    if name in names:
        return name
    found = [other for other in names if alike(other) == alike(name)]
    return found[0] if len(found) == 1 else None


def splits(path: str) -> list[tuple[str, str]]:
    """Return the column and the path within it that a path may mean, the longest name of a column first.

    >>> splits("a.b.c")
    [('a.b', 'c'), ('a', 'b.c')]
    """
    parts = path.split(".")
    return [(".".join(parts[:place]), ".".join(parts[place:])) for place in range(len(parts) - 1, 0, -1)]


def inside(record: Mapping[str, Any], path: str, missing: object = None) -> Any:  # noqa: ANN401
    """Return the value of a key of a JSON object, or of one within others; `missing` without it."""
    if (key := find(path, record)) is not None:
        return record[key]
    for first, rest in splits(path):
        inner = record.get(find(first, record) or first)
        if isinstance(inner, dict) and (value := inside(inner, rest, missing)) is not missing:
            return value
    return missing
