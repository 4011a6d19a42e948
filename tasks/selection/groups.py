"""Group the shards that are selected from together, and remember the groups, so that new shards do not change them.

A group is cut into blocks of at most `block_size` documents, each of which is selected from separately. With
`blocks: by_shard`, groups are neighbours in the order of the names, and no larger than a block. With `mixed`, groups
are random, and as large as many blocks, whose documents are mixed: what is best in a block is then nearly what is best
in the corpus, also where shards differ, as dumps, languages and sources do.
"""

import json
import math
from collections.abc import Sequence

from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.mirror import read_text
from fineweb_mask.tasks.workspace.references import digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

MIXED_BLOCKS = 16
"""Most blocks of a mixed group. A block is read by passing over all files of its group."""

Groups = list[list[ShardFiles]]


def grouped(
    shards: Sequence[ShardFiles], settings: PipelineSelectionSettings, known: Sequence[set[str]] = ()
) -> Groups:
    """Return the groups of shards that are selected from together, in the order of their first shards' names.

    Parameters
    ----------
    shards
        All shards that can be selected from.
    settings
        How large a block is, and whether blocks are mixed.
    known
        Names of the shards of mixed groups that were selected from before; those that fill a block are kept.
    """
    ordered = sorted(shards, key=lambda shard: shard.name)
    if settings.blocks == "by_shard":
        return _packed(ordered, settings.block_size)
    groups = _kept(ordered, settings, known)
    taken = {shard.name for group in groups for shard in group}
    rest = sorted(
        (shard for shard in ordered if shard.name not in taken), key=lambda shard: digest([settings.seed, shard.name])
    )
    count = math.ceil(_rows(rest) / (MIXED_BLOCKS * settings.block_size))
    groups += [sorted(group, key=lambda shard: shard.name) for group in _even(rest, count)]
    return sorted(groups, key=lambda group: group[0].name)


def group_name(group: Sequence[ShardFiles]) -> str:
    """Return the name of a group of shards, by its first and its last one."""
    first, last = group[0].name, group[-1].name
    return first if first == last else f"{first}..{last}"


def _rows(shards: Sequence[ShardFiles]) -> int:
    return sum(shard.rows for shard in shards)


class Packing:
    """Fills one group of shards after the other with at most `most` documents, or with one shard."""

    def __init__(self, most: int) -> None:
        self.open: list[ShardFiles] = []  # the group that the next shard may belong to
        self._most = most

    def add(self, shard: ShardFiles) -> Groups:
        """Add the next shard, and return the group that it made complete, if any."""
        if self.open and _rows(self.open) + shard.rows > self._most:
            complete, self.open = self.open, [shard]
            return [complete]
        self.open.append(shard)
        return []


def _packed(shards: Sequence[ShardFiles], most: int) -> Groups:
    packing = Packing(most)
    groups = [group for shard in shards for group in packing.add(shard)]
    return [*groups, packing.open] if packing.open else groups


def _kept(shards: Sequence[ShardFiles], settings: PipelineSelectionSettings, known: Sequence[set[str]]) -> Groups:
    """Return the known groups that still have as many documents as a block."""
    groups = [[shard for shard in shards if shard.name in names] for names in known]
    return [group for group in groups if _rows(group) >= settings.block_size]


def _even(shards: Sequence[ShardFiles], count: int) -> Groups:
    """Divide shards into `count` groups of nearly as many documents."""
    groups: Groups = []
    left = _rows(shards)
    for shard in shards:
        if not groups or (len(groups) < count and _rows(groups[-1]) >= left / (count - len(groups) + 1)):
            left -= _rows(groups[-1]) if groups else 0
            groups.append([])
        groups[-1].append(shard)
    return groups


def remember_groups(workspace: Workspace, settings: PipelineSelectionSettings, groups: Groups) -> None:
    """Record mixed groups in the workspace; those of other settings are forgotten."""
    if settings.blocks == "mixed":
        content = _record(settings) | {"groups": [[shard.name for shard in group] for group in groups]}
        text = json.dumps(content, indent=2) + "\n"
        if not workspace.exists(workspace.groups) or read_text(workspace.groups) != text:
            with atomic_write(workspace.groups) as partial:
                partial.write_text(text)


def remembered_groups(workspace: Workspace, settings: PipelineSelectionSettings) -> list[set[str]]:
    """Return the names of the shards of each recorded group, if the record is of the same seed and size of blocks."""
    try:
        content = json.loads(read_text(workspace.groups))
        same = all(content[name] == value for name, value in _record(settings).items())
        return [set(names) for names in content["groups"]] if same else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _record(settings: PipelineSelectionSettings) -> dict[str, int]:
    return {"seed": settings.seed, "block_size": settings.block_size}
