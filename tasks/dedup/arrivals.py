"""Remember in which order shards came into a workspace: of equal texts, that of the shard that came first is kept.

Shards that came together are in the order of their names. With the order of the names alone, a new shard whose name
comes first would take the copies of others, whose selections would all be made again.
"""

import json
from collections.abc import Iterable

from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.remote.copies import read_text
from fineweb_mask.tasks.workspace.workspace import Workspace


def in_order_of_arrival(workspace: Workspace, shards: Iterable[str]) -> list[str]:
    """Return the names of shards: those that are remembered first, in their order, then the others by name.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> workspace = Workspace(mkdtemp())
    >>> remember_arrivals(workspace, ["b", "c"])
    >>> in_order_of_arrival(workspace, ["a", "b", "c"])
    ['b', 'c', 'a']
    """
    rank = {name: place for place, name in enumerate(_remembered(workspace))}
    return sorted(shards, key=lambda name: (rank.get(name, len(rank)), name))


def remember_arrivals(workspace: Workspace, shards: Iterable[str]) -> None:
    """Remember shards, in this order, after those that are remembered already."""
    before = _remembered(workspace)
    known = set(before)
    names = [*before, *(name for name in shards if name not in known)]
    if names != before:
        with atomic_write(workspace.arrivals) as partial:
            partial.write_text(json.dumps(names, indent=0) + "\n")


def _remembered(workspace: Workspace) -> list[str]:
    try:
        return [str(name) for name in json.loads(read_text(workspace.arrivals))]
    except (OSError, ValueError, TypeError):
        return []
