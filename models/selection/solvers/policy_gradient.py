"""Learn one logit per document by policy gradient over sampled masks: the paper's solver.

The policy draws K documents without replacement from softmax(logits). Each step samples a group of masks on a
random batch, standardises their objective within the group and moves the logits along advantages^T masks.
That product is the whole gradient: the advantages sum to zero, so the softmax's term cancels. No derivative of the
metric is needed. For a document with a contribution of z-score z, the signal to noise ratio of a step is about
z * sqrt(n_rollout / batch): many steps are needed where many documents matter a little.

Source: DATAMASK, arXiv 2512.24265. The batches are consecutive parts of a random permutation of the documents,
redrawn when it is used up (ours: every document is then visited equally often).
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, in_order

LEAST_BATCH = 8_192  # documents, unless there are fewer: a batch of a few hundred says little about the corpus (ours)
EPSILON = 1e-8  # keeps the advantages finite if all rewards of a group are equal


def gumbel_keys(logits: Tensor, n_masks: int, generator: torch.Generator) -> Tensor:
    """Add Gumbel noise to logits (b,): (n_masks, b). In falling order it is a draw without replacement."""
    noise = torch.empty((n_masks, len(logits)), device=generator.device).exponential_(generator=generator)
    return logits - noise.to(logits.device).clamp_(min=torch.finfo(torch.float32).tiny).log_()


def advantages(rewards: Tensor) -> Tensor:
    """Standardise the rewards of one group, (G,)."""
    return (rewards - rewards.mean()) / (rewards.std(correction=0) + EPSILON)


def draw(logits: Tensor, budget: Budget, n_masks: int, generator: torch.Generator) -> Tensor:
    """Draw masks within a budget from softmax(logits), document after document without replacement: (n_masks, b) bool.

    Documents in the falling order of logits (b,) plus Gumbel noise are this draw, exactly. Minus the log of an
    exponential variable is Gumbel noise. Of a budget of tokens, each draw ends with the first document that does not
    fit.
    """
    keys = gumbel_keys(logits, n_masks, generator)
    masks = torch.zeros(keys.shape, dtype=torch.bool, device=logits.device)
    if budget.counts_documents:
        return masks.scatter_(1, keys.topk(budget.limit, dim=1, sorted=False).indices, value=True)
    order = keys.argsort(dim=1, descending=True)
    return masks.scatter_(1, order, budget.costs[order].cumsum(1) <= budget.limit)


def solve_policy_gradient(problem: Problem) -> Solution:
    """Learn the logits and select the documents of the highest ones."""
    objective, settings = problem.objective, problem.settings.policy_gradient
    budget, quality = objective.budget, problem.quality
    allowed = budget.allowed.nonzero()[:, 0]
    kept = len(allowed) - min(int(settings.prune * len(allowed)), max(0, len(allowed) - math.ceil(budget.size)))
    pool = allowed[quality[allowed].sort(descending=True, stable=True).indices[:kept]].sort().values
    logits = _initial_logits(quality[pool], settings.init)
    batch_size = min(kept, max(LEAST_BATCH, round(settings.partial * budget.n)))
    whole = int(budget.costs[pool].sum())
    noise = problem.generator  # drawn on the device: on a GPU it is other noise than on a CPU
    if pool.device.type != "cpu":
        noise = torch.Generator(pool.device).manual_seed(noise.initial_seed())
    batches = _batches(kept, batch_size, problem.generator)
    for step in track("policy gradient steps", range(settings.n_epochs), part=(0, 1)):
        if not step or batch_size < kept:  # else the batch is all documents
            batch = next(batches).to(pool.device)
            costs = budget.costs[pool[batch]]
            limit = max(int(costs.min()), round(budget.limit / whole * int(costs.sum())))
            local = objective.among(pool[batch], limit)
        masks = draw(logits[batch], local.budget, settings.n_rollout, noise)
        advantage = advantages(local.value(masks)).float()
        share = step / max(settings.n_epochs - 1, 1)
        rate = settings.max_lr + (settings.min_lr - settings.max_lr) * share
        logits[batch] += (rate / settings.n_rollout) * (advantage @ masks.float())
    inclusion = torch.full_like(quality, float(logits.min()) - 1)  # of others, below all in the pool
    inclusion[pool] = logits
    return in_order(problem, inclusion)


def _initial_logits(quality: Tensor, init: str) -> Tensor:
    if init == "same":
        return torch.zeros_like(quality)
    low, high = quality.min(), quality.max()
    # The lowest quality keeps a hundredth of the range, so its probability is small but not zero.
    return (quality - low + 0.01 * (high - low).clamp(min=torch.finfo(torch.float32).tiny)).log()


def _batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        yield from torch.split(torch.randperm(n, generator=generator)[: n // size * size], size)
