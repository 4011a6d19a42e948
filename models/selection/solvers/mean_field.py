"""Maximise the objective over inclusion probabilities, by its gradient in closed form instead of sampled masks (ours).

Every document has an inclusion probability pi_i with sum pi = K. The temperature T falls from step to step, and each
step solves pi = sigmoid((g(pi) - tau) / T), where g is the gradient of the relaxed objective and tau makes the budget
exact. A kernel metric depends on pi only through a small moment (d or d x d numbers), so each step is cheap. If all
metrics are linear in v (`pairwise`), it is a Newton step on the moment; its curvature comes from the documents near
the threshold, because only their probability moves. Otherwise (`disf` and sums with it) it is a Frank-Wolfe step
towards the smoothed top K, with exact line search. Other metrics enter through their gradient, damped.

Near-duplicates are penalised in the gradient by rank: documents are taken in the order of their marginal gains, and
each lowers the gain of its near-duplicates below it. Of two copies, one then keeps its gain and the other loses it,
where equal probabilities would leave both at one half.

Then K documents are kept and refined by swaps (`swaps.py`): the top K, or greedy's picks where these are better. They
are made in small blocks, where they cost next to nothing, and in others if a metric is curved in v (`disf`) and K not
large. The relaxed optimum then shows which documents may be kept but not which complement each other, and its top K
overlap at random; in a large block greedy picks among candidates that are found again in every round. The answer is the
best selection met on the way, the start included, so no setting ends below its own start.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.base import (
    Metric,
    SupportsGains,
    SupportsGradient,
    SupportsKernel,
    SupportsPenalties,
    SupportsReduction,
)
from fineweb_mask.models.selection.metrics.kernel import WHOLE_KERNEL
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.solvers.greedy import pick_among_candidates, pick_greedily
from fineweb_mask.models.selection.solvers.problem import History, Problem, Solution
from fineweb_mask.models.selection.solvers.swaps import ROUNDS_OF_SWAPS, refine

NEAR = 256  # documents near the threshold that shape one Newton step
DAMPING = 0.3  # share of the way per step if a metric has no exact line search
WARM = 0.5  # share of the annealing that remains if the start is the solution of a similar problem
READABLE = 0.25  # temperature of the reported inclusion, in standard deviations of the marginal gains
DIRECTIONS = 128  # principal directions of the features in which a large block is annealed
LARGE = 2_048  # least documents for that approximation if swaps alone must make up for it
CANDIDATES, ROUNDS = 1024, 32  # documents of largest gain among which greedy picks, and how often they are found
SMALL = 2048  # most documents for which greedy's picks cost next to nothing, so that every metric with gains uses them
LEAST_CHOICE = 2  # candidates per pick, below which greedy has too little to choose from
ASTRAY = 0.01  # share of the moments: how far they may be from those of the probabilities after Newton's steps
CLOSE = 1e-3  # share of what annealing gained: if no selection can be better by more, there is nothing to refine


class Schedule(NamedTuple):
    """How the temperature falls, in standard deviations of the gradient over the documents."""

    hottest: float
    coldest: float
    n_steps: int
    record_every: int  # steps between two selections that are rounded and evaluated


# Measured at n = 10,000 and 50,000, d = 768: fewer or colder steps lose objective, more gain none.
NEWTON = Schedule(0.3, 0.02, 6, 3)
LINE_SEARCH = Schedule(0.5, 0.02, 24, 8)
DAMPED = Schedule(1.0, 0.03, 40, 20)
AVERAGED = Schedule(0.5, 0.03, 120, 120)  # 60 steps left gaps of up to 0.6% on eight corpora, these 0.1%
COOLING = 30  # steps of that schedule until it is cold; over the others the moments are averaged


def solve_mean_field(
    problem: Problem, *, n_steps: int | None = None, rounds: int = ROUNDS_OF_SWAPS, least_rise: float = 0.0
) -> Solution:
    """Anneal, keep as many documents as the budget takes, refine them by swaps.

    A metric without gradient raises SelectionInputError.

    Parameters
    ----------
    problem
        What is selected from.
    n_steps
        Annealing steps, each one gradient over all documents; None: as many as suit the metrics.
    rounds
        Most rounds of swaps.
    least_rise
        Share of what annealing, picks and swaps have gained: a round of swaps in a pool that gains less is the last.
    """
    objective = problem.objective
    check_gradients(objective.metrics)
    pick = _picks_greedily(objective)
    coarse = _coarsened(objective, problem.generator) if pick or objective.n >= LARGE else objective
    path = Annealing(coarse, problem.start, n_steps)
    best = objective.top(objective.priority(path.gradient()))
    reached = objective.value_of(best)
    problem.history.record(0, reached)
    if bool(best.all()):
        return Solution(best, path.inclusion, path.inclusion)
    best, closed = _anneal(problem, path, best, reached)
    if path.may_go_astray and not closed and path.residual() > ASTRAY:
        path.restart_without_newton()
        best, closed = _anneal(problem, path, best, objective.value_of(best))
    if pick and not closed:
        best = _better(objective, best, _picked_greedily(problem))
    elif coarse is not objective:
        approximate = replace(problem, objective=coarse, history=History(entries=[(0, 0.0, -math.inf)]))
        best = _better(objective, best, refine(approximate, best, rounds))
    if not closed:
        best = refine(problem, best, rounds, least_rise)
    return Solution(best, ranks(objective, best, path.inclusion), path.inclusion)


def ranks(objective: Objective, mask: Tensor, otherwise: Tensor) -> Tensor:
    """Return the inclusion that tells each document's marginal gain to a selection; `otherwise` if all gain the same.

    All are (n,): the mask bool, the others float32.
    """
    gains = objective.marginal_gains(mask)
    spread = objective.deviation(gains)
    return objective.probabilities(gains, READABLE * spread) if spread > 0 else otherwise


def check_gradients(metrics: Mapping[str, Metric]) -> None:
    """Raise SelectionInputError if a metric has no gradient."""
    for name, metric in metrics.items():
        if not isinstance(metric, SupportsGradient):
            raise SelectionInputError(
                f"metric {name!r} has no gradient(inclusion): add one, or use solver 'policy_gradient'"
            )


def _anneal(problem: Problem, path: "Annealing", best: Tensor, start: float) -> tuple[Tensor, bool]:
    """Lower the temperature: the best selection met, (n,) bool, and whether no other can be noticeably better."""
    objective, reached = problem.objective, start
    for step, temperature in enumerate(path.temperatures(), start=path.first_step + 1):
        path.step(temperature)
        if step % path.schedule.record_every and step < path.n_steps:
            continue
        rounded = objective.top(path.ranking())
        value = objective.value_of(rounded)
        if value > reached:
            best, reached = rounded, value
        problem.history.record(step, reached)
        exact = path.is_at_optimum and path.near_duplicates is None
        if exact and path.bound() - reached <= CLOSE * (reached - start):
            return best, True
    return best, False


def _better(objective: Objective, mask: Tensor, other: Tensor) -> Tensor:
    return other if objective.value_of(other) > objective.value_of(mask) else mask


def _picks_greedily(objective: Objective) -> bool:
    """Return whether greedy picks repay their cost: few documents, or a kernel that D is curved in."""
    metrics = [metric for metric in objective.active.values() if not isinstance(metric, SupportsPenalties)]
    enough = objective.n <= WHOLE_KERNEL or LEAST_CHOICE * objective.budget <= CANDIDATES * ROUNDS
    if not metrics or not enough or not all(isinstance(metric, SupportsGains) for metric in metrics):
        return False
    kernels = [metric for metric in metrics if isinstance(metric, SupportsKernel)]
    curved = len(kernels) == len(metrics) and not all(metric.linear_in_v for metric in kernels)
    return objective.n <= SMALL or curved


def _picked_greedily(problem: Problem) -> Tensor:
    """Pick greedily among all documents if their kernel can be stored, and else among candidates: (n,) bool."""
    objective = problem.objective
    kernels = [metric for metric in objective.active.values() if isinstance(metric, SupportsKernel)]
    if objective.n <= WHOLE_KERNEL or all(metric.matrix is not None for metric in kernels):
        mask = pick_greedily(replace(problem, history=History())).mask
    else:
        mask = pick_among_candidates(problem, CANDIDATES, ROUNDS)
    problem.history.record(problem.history.entries[-1][0] + 1, objective.value_of(mask))
    return mask


def _coarsened(objective: Objective, generator: torch.Generator) -> Objective:
    """Replace metrics by their approximations in fewer directions; the same objective if none has one."""
    metrics = {
        name: metric.reduced(DIRECTIONS, generator) if isinstance(metric, SupportsReduction) else metric
        for name, metric in objective.metrics.items()
    }
    return objective if metrics == objective.metrics else replace(objective, metrics=metrics)


class Annealing:
    """The state of the annealing: inclusion probabilities and the metrics' moments."""

    def __init__(self, objective: Objective, start: Tensor | None = None, n_steps: int | None = None) -> None:
        self.objective, self._given_steps = objective, n_steps
        n, device = objective.n, objective.quality.device
        self.inclusion = torch.full((n,), objective.share, device=device) if start is None else start
        active = objective.active
        self.kernels = {name: metric for name, metric in active.items() if isinstance(metric, SupportsKernel)}
        self.others = {
            name: metric
            for name, metric in active.items()
            if not isinstance(metric, SupportsKernel | SupportsPenalties)
        }
        self.moments = {name: metric.moment(self.inclusion) for name, metric in self.kernels.items()}
        self.near_duplicates = next(  # that term, and what a pair of weight 1 costs in the objective
            (
                (metric, objective.weights[name] / objective.size)
                for name, metric in active.items()
                if isinstance(metric, SupportsPenalties)
            ),
            None,
        )
        self.by_newton = not self.others and all(metric.linear_in_v for metric in self.kernels.values())
        self.schedule = NEWTON if self.by_newton else DAMPED if self.others else LINE_SEARCH
        self.n_steps = self.n_cooling = n_steps or self.schedule.n_steps
        self.first_step = 0 if start is None else math.floor(self.n_steps * (1 - WARM))
        self._gradient: Tensor | None = None
        self._straight = objective.linear  # the gradient of all that has no moment
        self._mean: dict[str, Tensor] | None = None  # the moments' mean since it is cold, if they are averaged
        self._steps = 0

    def temperatures(self) -> Iterator[float]:
        """Yield temperatures that fall geometrically; with a start, the hot part of the schedule is skipped."""
        cooling = self.schedule.coldest / self.schedule.hottest
        for step in track("annealing steps", range(self.first_step, self.n_steps)):
            yield self.schedule.hottest * cooling ** min(step / max(self.n_cooling - 1, 1), 1.0)

    @property
    def may_go_astray(self) -> bool:
        """Whether the steps are Newton's, as many as suit them, in a block that swaps alone do not repair."""
        return self.by_newton and self._given_steps is None and self.objective.n > SMALL

    def residual(self) -> float:
        """Compute how far the moments are from those of the probabilities, as a share of these."""
        shares = [0.0]
        for name, metric in self.kernels.items():
            reached = metric.moment(self.inclusion)
            length = torch.linalg.vector_norm(reached).clamp(min=1e-30)
            shares.append(float(torch.linalg.vector_norm(self.moments[name] - reached) / length))
        return max(shares)

    def restart_without_newton(self) -> None:
        """Begin again from equal probabilities, with line searches, and the mean of the last moments as the answer.

        Newton's steps read the curvature off a few documents. Where these do not stand for the others, such as in a
        corpus of few clusters, the steps go astray.
        """
        self.by_newton, self.schedule, self.first_step, self._steps = False, AVERAGED, 0, 0
        self.n_cooling, self.n_steps = COOLING, AVERAGED.n_steps
        self.inclusion = torch.full_like(self.inclusion, self.objective.share)
        self.moments = {name: metric.moment(self.inclusion) for name, metric in self.kernels.items()}
        self._mean, self._gradient = self.moments, None

    def gradient(self) -> Tensor:
        """Return the gradient of the objective with respect to the inclusion probabilities, (n,) float32."""
        if self._gradient is None:
            self._straight = gradient = self.objective.linear.clone()
            for name, metric in self.others.items():
                assert isinstance(metric, SupportsGradient)  # noqa: S101 - checked before the start
                gradient += self.objective.weights[name] * metric.gradient(self.inclusion)
            for name, metric in self.kernels.items():
                moment, weight = self.moments[name], self.objective.weights[name]
                gradient = gradient + metric.gradient_at(moment, self.objective.size, weight)
            if self.near_duplicates is not None:
                pairs, penalty = self.near_duplicates
                knapsack = self.objective.knapsack
                penalised = pairs.penalised(gradient, penalty, None if knapsack is None else knapsack.costs)
                self._straight = self._straight + (penalised - gradient)
                gradient = penalised
            self._gradient = gradient
        return self._gradient

    def ranking(self) -> Tensor:
        """Return what documents are ranked by, (n,): Newton's pi saturates, the others' is an average."""
        return self.objective.priority(self.gradient()) if self.is_at_optimum else self.inclusion

    @property
    def is_at_optimum(self) -> bool:
        """Whether the moments are meant to be those of the optimum, so that their tangents bound the objective."""
        return self.by_newton or self._mean is not None

    def bound(self) -> float:
        """Bound the objective of every selection by the tangents at the moments; kernel metrics only.

        Infinite for a budget of tokens.
        """
        if self.objective.knapsack is not None:
            return math.inf
        bound = self.objective.constant
        for name, metric in self.kernels.items():
            bound += self.objective.weights[name] * metric.height(self.moments[name], self.objective.size)
        return bound + float(self.gradient().double().topk(self.objective.budget).values.sum())

    def step(self, relative_temperature: float) -> None:
        """Move pi and the moments towards the solution at a temperature in deviations of the gradient."""
        gradient = self.gradient()
        temperature = relative_temperature * self.objective.deviation(gradient)
        if temperature <= 0:  # all documents gain the same
            return
        target = self.objective.probabilities(gradient, temperature)
        reached = {name: metric.moment(target) for name, metric in self.kernels.items()}
        if self.by_newton:
            self.inclusion = target
            self._newton(reached, self.objective.priority(target * (1 - target) / temperature))
        else:
            share = min(DAMPING if self.others else 1.0, self._line_search(target, reached))
            self.inclusion = torch.lerp(self.inclusion, target, share)
            self.moments = {name: torch.lerp(moment, reached[name], share) for name, moment in self.moments.items()}
            if self._mean is not None:
                self._steps += 1
                newest = 1 / max(1, self._steps - COOLING)
                self._mean = {
                    name: torch.lerp(self._mean[name], moment, newest) for name, moment in self.moments.items()
                }
                if self._steps == self.n_steps:
                    self.moments = self._mean
        self._gradient = None

    def _line_search(self, target: Tensor, reached: dict[str, Tensor]) -> float:
        """Find the share of the way to the target at which the relaxed objective is highest.

        The objective is concave, so its derivative along the way is bisected; only the moments are read. Terms without
        a moment count with their present gradient.
        """
        linear = float(self._straight.double() @ (target - self.inclusion).double())
        curved = [
            (self.objective.weights[name], metric.along(moment, reached[name] - moment, self.objective.size))
            for name, metric in self.kernels.items()
            for moment in [self.moments[name]]
        ]
        return highest_share(lambda share: linear + sum(weight * derivative(share) for weight, derivative in curved))

    def _newton(self, reached: dict[str, Tensor], spread: Tensor) -> None:
        """Move the moments M towards those of the probabilities that they imply.

        With w = pi (1 - pi) / T and A = diag(w) - w w^T / sum w, the step is delta = r - sum_i y_i phi_i
        where (I + A G) y = A p, G = sum of 2 slope * kernel and p_i = sum of 2 slope <phi_i, r>. Only
        documents with a sizeable w matter, so G is small. It is solved as a symmetric system.
        With a budget of tokens, w is pi (1 - pi) / (T c) for costs c, and A = diag(w) - (w c)(w c)^T / sum w c^2.
        """
        slopes = {
            name: self.objective.weights[name]
            * metric.slope(float(self.moments[name].square().sum()), self.objective.size)
            for name, metric in self.kernels.items()
        }
        residuals = {name: reached[name] - moment for name, moment in self.moments.items()}
        costs = None if self.objective.knapsack is None else self.objective.knapsack.costs.float()
        near, weights = _near(spread, NEAR, costs)
        among = {name: metric.restrict(near) for name, metric in self.kernels.items()}
        gram = torch.zeros((len(near), len(near)), device=near.device)
        pull = torch.zeros(len(near), device=near.device)
        for name, metric in among.items():
            gram += 2 * slopes[name] * metric.whole_kernel()
            pull += 2 * slopes[name] * metric.scores(residuals[name])
        root, gram, pull = weights.double().sqrt(), gram.double(), pull.double()
        unit = root if costs is None else root * costs[near]
        unit = unit / torch.linalg.vector_norm(unit)
        system = root[:, None] * gram * root
        for _ in range(2):  # project the unit vector out from both sides: the budget does not move
            system = (system - torch.outer(unit, unit @ system)).T
        system.diagonal().add_(1)
        right = root * pull
        factor, fault = torch.linalg.cholesky_ex(system)
        if int(fault):  # a gradient that is only rounding has no usable curvature
            right = torch.zeros_like(right)
        solved = torch.cholesky_solve((right - unit * (unit @ right))[:, None], factor)
        shift = (root * (solved[:, 0] - unit * (unit @ solved[:, 0]))).float()
        for name, metric in among.items():
            self.moments[name] += residuals[name] - metric.moment(shift)


def highest_share(derivative: Callable[[float], float]) -> float:
    """Find the share of a way, from 0 to 1, at which a concave function of this derivative is highest: by bisection."""
    low, high = 0.0, 1.0
    if derivative(high) > 0:
        return high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if derivative(middle) > 0 else (low, middle)
    return low


def _near(spread: Tensor, most: int, costs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Pick the documents with a moving probability, evenly if there are too many, and rescale them to the whole sum.

    With costs (n,) a document counts with its cost squared.
    """
    if costs is not None:
        near, weights = _near(spread * costs.square(), most)
        return near, weights / costs[near].square()
    near = (spread > 0.02 * spread.max()).nonzero()[:, 0]
    if len(near) > most:
        near = near[torch.arange(most, device=near.device) * len(near) // most]
    weights = spread[near]
    return near, weights * (spread.sum(dtype=torch.float64) / weights.sum(dtype=torch.float64)).float()
