"""Sample documents by how much they add to the coverage of a random part of the corpus: INGENIOUS."""

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.selectors.clusters import priority_by_budget
from fineweb_mask.models.selection.solvers.policy_gradient import gumbel_keys
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, in_order

PART = 1500
"""Documents of one random part, all of whose products are made at once."""


def solve_ingenious(problem: Problem, *, size: int = PART) -> Solution:
    """Divide the documents into random parts of about `size`, and sample from each by the gains of a greedy search.

    A document's probability is proportional to 1 + g + g^2 / 2 for its gain g when the search takes it, the Taylor
    softmax. Coverage is the sum over the part of the cosine to the nearest document taken, as `facility` measures it.
    Source: INGENIOUS, arXiv 2305.06677. The inclusion is minus the rank in the part over its budget.
    """
    rows, objective = problem.rows, problem.objective
    order = torch.randperm(rows.n, generator=problem.generator).to(rows.device)
    parts = max(1, round(rows.n / size))
    labels = torch.empty(rows.n, dtype=torch.int64, device=rows.device)
    gains = torch.empty(rows.n, device=rows.device)
    for number, part in enumerate(track("parts", list(torch.tensor_split(order, parts)))):
        labels[part] = number
        vectors = rows.matrix[part]
        gains[part] = greedy_gains((vectors @ vectors.T).clamp_(min=0))
    keys = gumbel_keys(torch.log1p(gains + gains**2 / 2), 1, problem.generator)[0]
    sizes = torch.bincount(labels, minlength=parts).double()
    budgets = (sizes.cumsum(0) / rows.n * objective.budget.size).round().long()
    budgets = torch.diff(budgets, prepend=torch.zeros(1, dtype=torch.int64, device=budgets.device))
    return in_order(problem, priority_by_budget(labels, keys, budgets))


def greedy_gains(similarity: Tensor) -> Tensor:
    """Return what each document adds to the coverage when a greedy search takes it, for similarities (p, p): (p,).

    Source: Minoux's accelerated greedy: gains only fall, so a document whose gain is still the largest is taken.

    >>> greedy_gains(torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])).tolist()
    [1.5, 0.5, 1.0]
    """
    p = len(similarity)
    covered = torch.zeros(p, device=similarity.device)
    gains = similarity.sum(0)
    found = torch.zeros(p, device=similarity.device)
    waiting = torch.ones(p, dtype=torch.bool, device=similarity.device)
    for _ in range(p):
        while True:
            document = int(torch.where(waiting, gains, -torch.inf).argmax())
            gain = (similarity[document] - covered).clamp_(min=0).sum()
            if float(gain) >= float(gains[document]) - 1e-6 * p:
                break
            gains[document] = gain
        found[document] = gain
        waiting[document] = False
        covered = torch.maximum(covered, similarity[document])
    return found
