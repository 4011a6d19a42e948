"""Select documents for quality and diversity together, and write the masks: from each block, or by a corpus's rule.

A job covers whole shards, so that every shard's mask is written once, and gives each block its own seed, derived from
the block's name: the choice does not depend on the order of work.
"""

from typing import Any, ClassVar

from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.selection.blocks import NOT_READ, BlocksJob, Group, Masks, describe, select_block
from fineweb_mask.tasks.selection.budgets import Budgets
from fineweb_mask.tasks.selection.corpus.arrays import read_arrays
from fineweb_mask.tasks.selection.shard_documents import ShardColumns, read_parts
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile


class SelectJob(BlocksJob):
    """Select from one group of shards; with a rule, from one shard."""

    rule: StageFile | None = None  # of the whole corpus
    budgets: StageFile | None = None  # of all blocks, with `block_budget: price`

    stage: ClassVar[Stage] = Stage(
        "select",
        version=3,
        folders=("masks",),
        run_with=("select",),
        documents=lambda file: (
            sum(block["documents"] for block in file.details["blocks"]),
            sum(block["selected"] for block in file.details["blocks"]),
        ),
        counts=("eligible", "selected"),
    )

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu"

    def depends_on(self) -> Dependencies:
        """Return what a selection from blocks depends on, with their budgets, or the rule and the shard."""
        if self.rule is None:
            found = super().depends_on()
            return found if self.budgets is None else found._replace(inputs=[found.inputs, self.budgets.fingerprint])
        settings = [self.rule.fingerprint, self.settings.seed, self.settings.budget_by]
        return Dependencies(settings=settings, inputs=super().depends_on().inputs)

    def settings_read(self) -> object:
        """Return all settings but the device and how blocks are cut."""
        return self.settings.model_dump(exclude=NOT_READ)


@stage_task
def select(job: SelectJob) -> None:
    """Write the masks of a group of shards: who is selected, each document's inclusion, its block."""
    group = Group.read(job)
    masks, described = Masks(group), list[dict[str, Any]]()
    if job.rule is not None:
        described.append(_select_by_rule(job, job.rule, group, masks))
        masks.write(described)
        return
    budgets = None if job.budgets is None else Budgets(job.workspace, job.budgets)
    for block in group.blocks():
        settings, scales = (job.settings, None) if budgets is None else budgets.of(job.settings, block)
        selection = select_block(settings, block, scales=scales)
        masks.enter(block, selection)
        described.append(describe(block, selection))
    masks.write(described)


def _select_by_rule(job: SelectJob, kept: StageFile, group: Group, masks: Masks) -> dict[str, Any]:
    """Enter what a rule selects from a shard, and return what the reports need: objective and bound of the corpus."""
    import torch

    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.corpus.documents import without_prefix
    from fineweb_mask.models.selection.corpus.rule import Rule
    from fineweb_mask.models.selection.measures import relative_gap

    device = torch.device(choose_device(job.settings.device))
    [shard] = job.shards
    columns, counts = ShardColumns(group.quality, group.candidate, group.tokens, group.excluded), [0, 0, 0, 0]
    arrays = read_arrays(job.workspace.resolve(kept))
    rule = Rule.of_arrays(without_prefix("best", arrays), device)
    for rows, part in read_parts(
        job.workspace, shard, columns, job.settings.seed, by_tokens=job.settings.budget_by == "tokens"
    ):
        with gpu_slot(str(device)):
            selected, inclusion = rule.select(part, device)
        masks.enter_rows(rows, selected, inclusion, job.group)
        tokens = columns.tokens[rows]
        found = (len(rows), int(selected.sum()), int(tokens.sum()), int(tokens[selected].sum()))
        counts = [before + one for before, one in zip(counts, found, strict=True)]
    details = kept.details
    bound = min(step["upper_bound"] for step in details["steps"])
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
