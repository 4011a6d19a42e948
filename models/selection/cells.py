"""Select from a corpus that is larger than a block in blocks of documents that are alike, its cells (ours).

`facility` is local: a document is covered by selected ones that are like it. The other metrics are functions of a mean
over all that is selected, the moment. So the corpus is cut into cells of k-means, and a random sample, solved as one
block, says what ties the cells together: how much of the budget each gives, and the moment of what the others select.
A cell is then its own block, which is selected as if the sample's answer were that of all other cells.
docs/blocks.md has the derivation and what it costs.

With r the cell's rate of selection over that of the corpus, and its share s of all that is selected, a cell maximises

    J_c = r lamb Q_c + (1 - lamb) (w_facility D_facility(cell) + sum over others of w (D* + (D - D*) r / s)),

with the mean quality Q_c of what it selects, D of its selection and the others' together, and D* that of the sample.
The mean of J_c over the cells, by their documents, is J, up to what cells do to each other: documents that are covered
from another cell, and moments that change in two cells at once.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.block import BlockSolver, Selection
from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.k_means import fit_centres, nearest_centres
from fineweb_mask.models.selection.metrics.base import Metric, metric_class
from fineweb_mask.models.selection.objective import Ranges, Term
from fineweb_mask.models.selection.shares import divided, whole
from fineweb_mask.models.settings.selection import METRICS, SelectionSettings

MOVES = 10  # of the centres
SPLITS = 4  # times that cells which are too large are divided
LEAST = 1e-9  # part of the sample's selection: a smaller one is none
PRIOR = 10.0  # documents of the corpus's rate that are added to each cell's of the sample


@same_threads()
def fit_cells(
    vectors: NDArray[np.floating[Any]], documents: int, block_size: int, seed: int, device: torch.device
) -> NDArray[np.float32]:
    """Return the centres of cells of half a block on average, and at most one, for a corpus of so many documents.

    `vectors` (s, d) are those of a random sample. Where documents are too much alike to be divided, a cell is larger.
    The centres are (cells, d) float32, of unit length.
    """
    rows = checked_features(vectors, device)
    generator = torch.Generator().manual_seed(seed)
    most = max(1.0, block_size * rows.n / documents)  # documents of the sample
    centres = fit_centres(rows, _parts(rows.n, most / 2), MOVES, generator)
    for _ in range(SPLITS):
        labels, _ = nearest_centres(rows, centres)
        sizes = torch.bincount(labels, minlength=len(centres))
        large = sizes > most
        if not bool(large.any()):
            break
        parts = [centres[~large]]
        for cell in large.nonzero()[:, 0].tolist():
            members = rows.only((labels == cell).nonzero()[:, 0])
            parts.append(fit_centres(members, _parts(members.n, most / 2), MOVES, generator))
        centres = torch.cat(parts)
    held = torch.bincount(nearest_centres(rows, centres)[0], minlength=len(centres)) > 0
    return centres[held].cpu().numpy()


def _parts(documents: int, size: float) -> int:
    return max(1, min(documents, math.ceil(documents / size)))


@same_threads()
def cells_of(
    vectors: NDArray[np.floating[Any]], centres: NDArray[np.float32], device: torch.device
) -> NDArray[np.int32]:
    """Return the cell of each document, (n,): that of the nearest of the centres (cells, d)."""
    rows = checked_features(vectors, device)
    labels, _ = nearest_centres(rows, torch.as_tensor(centres, device=device))
    found: NDArray[np.int32] = labels.int().cpu().numpy()
    return found


@dataclass(frozen=True, eq=False)
class Plan:
    """What a sample of a corpus says of the selection from each cell.

    Attributes
    ----------
    rate
        Share of the corpus's documents (or tokens) that is selected.
    total
        Documents (or tokens) that are selected from the corpus.
    ranges
        The scales of the terms.
    rates
        Share of each cell's, (cells,) float64.
    vectors, costs, cells
        Of what is selected from the sample, (k, d), and (k,) each: 1, or the tokens, and the cell.
    standard
        What `disf` standardises by: mean and inverse deviation, (2, d) float32.
    """

    rate: float
    total: float
    ranges: Ranges
    rates: NDArray[np.float64]
    vectors: NDArray[np.floating[Any]]
    costs: NDArray[np.int64]
    cells: NDArray[np.int32]
    standard: NDArray[np.float32]


@same_threads()
def plan_cells(
    vectors: NDArray[np.floating[Any]],
    quality: NDArray[np.float32],
    cells: NDArray[np.int32],
    settings: SelectionSettings,
    sizes: NDArray[np.int64],
    *,
    device: torch.device,
    tokens: NDArray[np.int64],
) -> Plan:
    """Solve a random sample of a corpus as one block, and return what it says of every cell.

    Parameters
    ----------
    vectors, quality, cells, tokens
        Of the sample: (s, d), and (s,) each.
    settings
        What is selected from the corpus.
    sizes
        Documents of each cell of the corpus, (cells,), or their tokens with a budget of tokens.
    device
        Where the sample is solved.
    """
    total = int(sizes.sum())
    rate = settings.select_ratio if settings.budget is None else min(1.0, settings.budget / max(1, total))
    solved = settings.model_copy(update={"select_ratio": rate, "budget": None})
    block = BlockSolver(vectors, quality, solved, device=device, tokens=tokens)
    chosen = block.solve().mask.cpu().numpy()
    costs = tokens if settings.budget_by == "tokens" else np.ones(len(cells))
    inside, kept = (np.bincount(cells, weights=part, minlength=len(sizes)) for part in (costs, costs * chosen))
    prior = PRIOR * costs.mean()
    wanted = divided(rate * total, sizes * (kept + prior * rate) / (inside + prior), sizes)
    counts = whole(wanted, round(float(wanted.sum())))
    rates = np.divide(counts, sizes, out=np.full(len(sizes), rate), where=sizes > 0)
    standard = block.rows.standard().cpu().numpy()
    of_chosen = (vectors[chosen], costs[chosen].astype(np.int64), cells[chosen])
    return Plan(rate, float(counts.sum()), block.ranges, rates, *of_chosen, standard)


@same_threads()
def select_from_cell(
    vectors: NDArray[np.floating[Any]],
    quality: NDArray[np.float32],
    settings: SelectionSettings,
    plan: Plan,
    cell: int,
    *,
    device: torch.device,
    tokens: NDArray[np.int64],
) -> Selection:
    """Select `settings.budget` documents (or tokens) of a cell, or of a part of it, as a plan says.

    A cell is a block whose metrics know the other cells, and whose terms are scaled so that they add up to J_c.
    `vectors` are (n, d), `quality` and `tokens` (n,).
    """
    block = BlockSolver(vectors, quality, settings, device=device, tokens=tokens)
    assert settings.budget is not None  # noqa: S101 - see above
    budget, metrics, terms = block.budget, dict[str, Metric](), dict[str, Term]()
    everyone, share = replace(budget, limit=round(plan.total)), min(1.0, settings.budget / plan.total)
    relative = settings.budget / int(budget.costs.sum()) / plan.rate
    chosen, others = checked_features(plan.vectors, device), torch.as_tensor(plan.cells != cell, device=device)
    chosen_costs, standard = (torch.as_tensor(one, device=device) for one in (plan.costs, plan.standard))
    for name, term in plan.ranges.items():
        metrics[name], base, factor = block.metrics[name], term.base, term.factor
        if name in METRICS and not METRICS[name].is_local:
            kind, typical_of = metric_class(name), Budget.of(chosen_costs, int(chosen_costs.sum()))
            sample = kind(chosen, typical_of, standard=standard)
            rest = sample.moment(others) * ((1 - share) / max(float(typical_of.shares[others].sum()), LEAST))
            metrics[name] = beside = kind(block.rows, everyone, rest=rest, standard=standard)
            typical, credit = float(sample.outer(sample.moment(torch.ones_like(others)).square().sum())), beside.credit
            of_all, own = (float(credit.double().mean()) * size for size in (everyone.size, budget.size))
            base = typical + own + (base - typical - of_all) * share / relative
            factor *= relative / share
        elif name == "quality":
            factor *= relative
        terms[name] = Term(metrics[name].random_value(budget), base, factor)
    block.metrics, block.ranges = metrics, terms
    return block.selection(block.solve())
