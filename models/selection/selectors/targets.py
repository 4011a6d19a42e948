"""Select the documents that resemble examples of target tasks: BETR and RDS+."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.inputs import Targets
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selectors.scores import in_turn
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, in_order

AT_ONCE = 64
"""Examples that all documents are ranked by together."""
CANDIDATES = 1 << 28
"""Most documents of the rankings of all examples, 4 bytes each."""


def solve_betr(problem: Problem) -> Solution:
    """Select the documents of the best ranks, where every example ranks all documents by its cosine with them.

    A document's score is minus the log of its best rank. Every task has as many
    examples, the first ones: those of the task that has fewest. Ranks make examples comparable whose cosines are of
    different sizes. Source: BETR, arXiv 2507.12466, which distils these scores into a classifier because its documents
    have no vectors; here all have. The inclusion is the score.
    """
    rows, targets = problem.rows, problem.also.targets
    assert targets is not None  # noqa: S101 - checked by the caller
    vectors = targets.vectors[balanced(targets.tasks)]
    score = torch.full((rows.n,), -torch.inf, dtype=torch.float64, device=rows.device)
    places = torch.log(torch.arange(1, rows.n + 1, device=rows.device, dtype=torch.float64)).neg()
    for part in track("target examples", torch.split(vectors, AT_ONCE)):
        for cosines in (rows.matrix @ part.T).T:
            own = torch.empty_like(score)
            own[cosines.sort(descending=True, stable=True).indices] = places
            score = torch.maximum(score, own)
    return in_order(problem, score)


def solve_rds(problem: Problem) -> Solution:
    """Let the tasks in turn take the document, of those not taken, that is nearest to one of their examples.

    Where there is one task, its examples take turns. Source: RDS+, arXiv 2503.01807, and its published code
    (hamishivi/automated-instruction-selection). There the vectors are position-weighted means of a language model's
    hidden states; here they are the encoder's. The inclusion is minus the number of documents that were taken before.
    """
    rows, targets = problem.rows, problem.also.targets
    assert targets is not None  # noqa: S101 - checked by the caller
    near = nearness(rows, targets)
    turns = list(near if len(near) > 1 else targets.vectors)
    orders, count = list[NDArray[np.int32]](), max(1, CANDIDATES // len(turns))
    for one in track("target examples", turns):
        cosines = one if len(near) > 1 else rows.matrix @ one
        order = cosines.sort(descending=True, stable=True).indices[:count]
        orders.append(order.cpu().numpy().astype(np.int32))
    return in_order(problem, in_turn(orders, near.amax(0), problem))


def nearness(rows: Rows, targets: Targets) -> Tensor:
    """Return the largest cosine of each document with an example of each task: (tasks, n) float32."""
    tasks = sorted(set(targets.tasks.tolist()))
    found = torch.full((len(tasks), rows.n), -torch.inf, device=rows.device)
    for number, task in enumerate(tasks):
        for part in torch.split(targets.vectors[targets.tasks == task], AT_ONCE):
            found[number] = torch.maximum(found[number], (rows.matrix @ part.T).amax(1))
    return found


def balanced(tasks: Tensor) -> Tensor:
    """Return the first examples of each task, as many as the task with fewest has, for tasks (t,): (b,) int64.

    >>> balanced(torch.tensor([0, 0, 1, 0, 1])).tolist()
    [0, 1, 2, 4]
    """
    own = [(tasks == task).nonzero()[:, 0] for task in sorted(set(tasks.tolist()))]
    fewest = min(map(len, own))
    return torch.cat([examples[:fewest] for examples in own]).sort().values
