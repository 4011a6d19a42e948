"""Select from one block with a budget for each group of documents, and count what groups have of their budgets."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.selection.corpus.documents import Documents, repeats
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.selection.blocks import Block, block_settings

if TYPE_CHECKING:
    from fineweb_mask.models.selection import Selection


def select_by_group(settings: PipelineSelectionSettings, block: Block) -> "tuple[Selection, list[dict[str, Any]]]":
    """Select from a block as from a whole corpus, all of which is the sample; and return what is said of each group."""
    from fineweb_mask.models.selection import Selection
    from fineweb_mask.models.selection.corpus.whole import select_corpus

    assert block.random_keys is not None  # noqa: S101 - read with the groups
    assert block.groups is not None  # noqa: S101
    device, own = torch_device(settings.device), block_settings(settings, block)
    tokens = block.tokens if settings.budget_by == "tokens" else None
    documents = Documents(block.vectors, block.quality, block.random_keys, tokens, groups=block.groups.astype(np.str_))
    with gpu_slot(device):
        found = select_corpus(
            lambda: [documents],
            own,
            passes=settings.passes,
            groups=settings.groups,
            device=device,
        )
        inclusion = found.rule.select(documents, device)[1]
    terms = found.ranges.terms(found.raw, settings.metric_weights)
    weighed = settings.lamb * terms["quality"] + (1 - settings.lamb) * terms["diversity"]
    if settings.near_duplicates.weight > 0:
        terms["near_duplicate_cost"] = weighed - found.objective
    [mask] = found.masks
    times = mask * repeats(documents, found.rule.repeats)
    selection = Selection(
        indices=mask.nonzero()[0],
        inclusion=inclusion,
        objective=found.objective,
        terms=terms,
        upper_bound=found.upper_bound,
        gap=found.gap,
        random_objective=found.random_objective,
        history=[(number, 0.0, step.objective) for number, step in enumerate(found.steps, start=1)],
        copies=times[mask],
    )
    return selection, count_groups(documents, mask, times, found.asked)


def count_groups(
    documents: Documents, selected: NDArray[np.bool_], repeats: NDArray[np.int64], asked: dict[str, int]
) -> list[dict[str, Any]]:
    """Return what the report says of each group: its budget and what of it is spent are documents, or tokens."""
    assert documents.groups is not None  # noqa: S101 - read with the groups
    found = []
    for name in sorted({*np.unique(documents.groups).tolist(), *asked}):
        own = documents.groups == name
        costs, used = documents.costs[own], selected[own]
        found.append(
            {
                "group": name,
                "documents": int(own.sum()),
                "budget": asked.get(name, 0),
                "selected": int(used.sum()),
                "repeated": int(repeats[own].sum()),
                "spent": int((costs * repeats[own]).sum()),
            }
        )
    return found
