"""Select documents for quality and diversity together, and write the masks: from each block, or by a corpus's policy.

A job covers whole shards, so that every shard's mask is written once, and gives each block its own seed, derived from
the block's name: the choice does not depend on the order of work.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.problem.measures import relative_gap
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.selection.blocks import BlocksJob, Group, Masks, block_key, describe, select_block
from fineweb_mask.tasks.selection.corpus.learning import read_learned
from fineweb_mask.tasks.selection.corpus.passes import read_penalties
from fineweb_mask.tasks.selection.groups import read_shares, select_groups
from fineweb_mask.tasks.selection.inputs.shard_documents import (
    ShardColumns,
    read_gains,
    read_parts,
    read_without_vectors,
)
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    import torch

    from fineweb_mask.models.selection.corpus.rule import Rule


class SelectJob(BlocksJob):
    """Select from one group of shards; with a policy, from one shard."""

    policy: StageFile | None = None  # of the whole corpus, as `keep_policy` wrote it
    penalties: tuple[StageFile, ...] = ()  # of the corpus's near-duplicates
    shares: StageFile | None = None  # of all groups of documents, where they are not those of the corpus

    stage: ClassVar[Stage] = Stage(
        "select",
        version=6,
        folders=("masks",),
        documents=lambda file: (
            sum(block["documents"] for block in file.details["blocks"]),
            sum(block["selected"] for block in file.details["blocks"]),
        ),
        counts=("eligible", "selected"),
    )

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster: not if the documents' marginal gains are known."""
        return self.settings.device != "cpu" and not any(shard.worth.path for shard in self.shards)

    def depends_on(self) -> Dependencies:
        """Return what a selection from blocks depends on, with the groups' shares, or the policy and the shard."""
        if self.policy is None:
            found = super().depends_on()
            return found if self.shares is None else found._replace(inputs=[found.inputs, self.shares.fingerprint])
        settings = [self.policy.fingerprint, self.settings.seed, self.settings.budget_by]
        penalties = [file.fingerprint for file in self.penalties]
        return Dependencies(settings=settings, inputs=[*super().depends_on().inputs, *penalties])

    def settings_read(self) -> object:
        """Return all settings but the device and how blocks are cut, and those of groups where there are any."""
        groups = self.settings.groups
        return [block_key(self.settings), *([] if groups is None else [groups.model_dump()])]


@stage_task
@same_threads()
def select(job: SelectJob) -> None:
    """Write the masks of a group of shards: who is selected, each document's inclusion, its block."""
    group = Group.read(job)
    masks, described = Masks(group), list[dict[str, Any]]()
    if job.policy is not None:
        described.append(_select_by_policy(job, job.policy, group, masks))
        masks.write(described)
        return
    if job.settings.groups is not None:
        shares = None if job.shares is None else read_shares(job.workspace, job.shares)
        for block in group.blocks(job.settings.groups.column):
            for found in select_groups(job.settings, block, shares):
                masks.enter(found.block, found.selection)
                more = {"group": found.group, "budget": found.budget}
                described.append(describe(found.block, found.selection) | more)
        masks.write(described)
        return
    for block in group.blocks():
        selection = select_block(job.settings, block)
        masks.enter(block, selection)
        described.append(describe(block, selection))
    masks.write(described)


def _select_by_policy(job: SelectJob, kept: StageFile, group: Group, masks: Masks) -> dict[str, Any]:
    """Enter what a policy selects from a shard, and return what the reports need: objective and bound of the corpus."""
    device = torch_device(job.settings.device if job.uses_gpu else "cpu")
    columns, counts = group.columns, [0, 0, 0, 0]
    policy = read_learned(job.workspace, kept, "best", device).rule
    for rows, documents in _candidates(job, policy, columns, device):
        selected, inclusion = policy.judge(documents)
        masks.enter_rows(rows, selected, inclusion, job.group)
        tokens = columns.tokens[rows]
        found = (len(rows), int(selected.sum()), int(tokens.sum()), int(tokens[selected].sum()))
        counts = [before + one for before, one in zip(counts, found, strict=True)]
    details = kept.details
    bound = details["upper_bound"]
    return {
        "name": job.group,
        "by_rule": True,
        **dict(zip(("documents", "selected", "tokens", "tokens_selected"), counts, strict=True)),
        "objective": details["objective"],
        "random_objective": details["random_objective"],
        "upper_bound": bound,
        "bound_assumes": None,
        "gap": relative_gap(details["objective"], bound, details["random_objective"]),
        "terms": details["terms"],
        "history": [[number, step["objective"]] for number, step in enumerate(details["steps"], start=1)],
    }


def _candidates(
    job: SelectJob, policy: "Rule", columns: ShardColumns, device: "torch.device"
) -> Iterator[tuple[NDArray[np.int64], Documents]]:
    """Yield the candidates of a shard in parts: their rows, and the documents with their marginal gains."""
    [shard] = job.shards
    penalties = read_penalties(job.workspace, job.penalties, shard.name, shard.rows) if job.penalties else None
    if shard.worth.path:  # a pass over the corpus measured it, and counted on it
        rows = columns.candidate.nonzero()[0]
        known = read_without_vectors(shard, columns, job.settings)
        parts = iter([(rows, known._replace(worth=read_gains(job.workspace, shard)[rows]))])
    else:
        parts = read_parts(job.workspace, shard, columns, job.settings)
    for rows, part in parts:
        found = part
        if part.worth is None:
            with gpu_slot(device):
                found = part._replace(worth=policy.measure(part, device).worth)
        yield rows, found if penalties is None else found._replace(charges=penalties[rows])
