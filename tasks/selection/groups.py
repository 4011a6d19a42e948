"""Group the shards that are selected from together: neighbours in the order of the names, no larger than a block.

A shard of more than `block_size` documents is a group that is cut into several blocks.
"""

from collections.abc import Sequence

from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.workspace.shard_files import ShardFiles

Groups = list[list[ShardFiles]]


def grouped(shards: Sequence[ShardFiles], settings: PipelineSelectionSettings) -> Groups:
    """Return the groups of shards that are selected from together, in the order of their first shards' names."""
    packing = Packing(settings.block_size)
    groups = [group for shard in sorted(shards, key=lambda shard: shard.name) for group in packing.add(shard)]
    return [*groups, packing.open] if packing.open else groups


def group_name(group: Sequence[ShardFiles]) -> str:
    """Return the name of a group of shards, by its first and its last one."""
    first, last = group[0].name, group[-1].name
    return first if first == last else f"{first}..{last}"


class Packing:
    """Fills one group of shards after the other with at most `most` documents, or with one shard."""

    def __init__(self, most: int) -> None:
        self.open: list[ShardFiles] = []  # the group that the next shard may belong to
        self._most = most

    def add(self, shard: ShardFiles) -> Groups:
        """Add the next shard, and return the group that it made complete, if any."""
        if self.open and sum(one.rows for one in self.open) + shard.rows > self._most:
            complete, self.open = self.open, [shard]
            return [complete]
        self.open.append(shard)
        return []
