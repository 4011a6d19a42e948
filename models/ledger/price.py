"""Estimate what new documents would add to a corpus, from a sample of both, with intervals.

What depends on a document alone (it is like one of ours, it is of a new topic) is a share of the sample. What is
selected depends on all documents: the same share of both is drawn and selected from together, as if both were smaller.
That is repeated with random halves of the draw, which tell two things: how much the answer varies from draw to draw,
and whether it changes with the number of documents, by the difference of the halves to the whole. The interval holds
both: what is drawn at a tenth doubles three times before it is whole.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import nearest_cosines
from fineweb_mask.models.audit.agreement import wilson
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings.selection import SelectionSettings

MOST_DOCUMENTS = 12_000
"""Documents that are selected from at one time."""
WHOLES, HALVES = 4, 8
"""Selections from all that is drawn, where it is more than is selected from at one time, and from half of it."""
DOUBLINGS = 2.0
"""Doublings of the documents over which a change that is surely seen is carried on: it becomes smaller with each."""
DRIFT = 0.12
"""Share by which what J gains may change with each doubling (measured: docs/ledger.md)."""
USUAL = 0.99
"""Share of our documents that are as near to a centre as one that is not new."""
OF_CENTRE, OF_CLUSTER = 50, 40
"""Documents for each centre of ours, and of each cluster of theirs, on average."""
CENTRES, CLUSTERS, MOVES = 200, 50, 10


class Estimate(NamedTuple):
    """A value, and where it lies in 19 of 20 trials."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Self:
        """Return a positive multiple of it.

        >>> Estimate(0.5, 0.25, 1.0).times(2)
        Estimate(value=1.0, low=0.5, high=2.0)
        """
        return type(self)(self.value * factor, self.low * factor, self.high * factor)


class Documents(NamedTuple):
    """What n documents are selected by."""

    vectors: NDArray[np.float32]  # (n, d), of unit length
    quality: NDArray[np.float32]  # (n,)
    tokens: NDArray[np.int64]  # (n,)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Self:
        """Return some of them."""
        return type(self)(self.vectors[rows], self.quality[rows], self.tokens[rows])


class Joined(NamedTuple):
    """What is selected from n documents of ours, alone and with m of theirs."""

    alone: NDArray[np.bool_]  # (n,)
    kept: NDArray[np.bool_]  # (n + m,), ours first, of the recipe's share of both
    same_size: NDArray[np.bool_]  # (n + m,), of the size that is selected from ours alone
    gain: float  # J of that selection less J of the one from ours alone, both among all documents


def join(ours: Documents, theirs: Documents, settings: SelectionSettings, device: str = "cpu") -> Joined:
    """Select from ours alone, from both by the recipe's share, and from both as much as from ours alone.

    J is maximised by the closed-form solver, whatever the solver of the settings. Its terms are on the scale of ours
    alone; what is to be covered by a selection are all documents, so that two selections of one size can be compared.
    """
    from fineweb_mask.models.selection.block import BlockSolver, checked_block
    from fineweb_mask.models.selection.solvers.problem import History

    by_tokens, n = settings.budget_by == "tokens", len(ours.quality)
    both = Documents(*(np.concatenate([getattr(one, name) for one in (ours, theirs)]) for name in Documents._fields))

    def block_of(documents: Documents, budget: int | None) -> BlockSolver:
        asked = settings.model_copy(update={"solver": "mean_field", "budget": budget})
        tokens = documents.tokens if by_tokens else None
        return checked_block(documents.vectors, documents.quality, asked, device=device, tokens=tokens)

    first = block_of(ours, settings.budget)
    chosen = first.solve(History(None), settings.lamb)[1].mask
    size = int(first.tokens[chosen].sum()) if first.tokens is not None else int(chosen.sum())
    found, gain = [], 0.0
    for budget in dict.fromkeys([size, settings.budget]):
        block = block_of(both, budget)
        block.take_ranges(first.ranges)
        scaled, solution = block.solve(History(None), settings.lamb)
        found.append(solution.mask.cpu().numpy())
        if budget == size:
            before = solution.mask.new_zeros(len(solution.mask))
            before[:n] = chosen
            gain = scaled.objective.value_of(solution.mask) - scaled.objective.value_of(before)
    return Joined(chosen.cpu().numpy(), found[-1], found[0], gain)


class Draws(NamedTuple):
    """Which documents are selected from together, as places in n of ours and m of theirs."""

    wholes: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    halves: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    share: float  # of what is drawn that is in a whole

    @classmethod
    def of(cls, n: int, groups: NDArray[np.int64], needed: float, seed: int = 0) -> Self:
        """Draw from n documents of ours and those of theirs, which stand beside `needed` of ours.

        Parameters
        ----------
        n
            Documents of ours that were read; fewer than needed where these are too many.
        groups
            Of each of theirs, (m,): what was drawn together, such as the rows of a file, is halved as a whole.
        needed
            Documents of ours in the same share of the corpus.
        """
        dice = np.random.default_rng(seed)
        m, names = len(groups), np.unique(groups)
        share = min(1.0, MOST_DOCUMENTS / max(1.0, needed + m))

        def drawn(part: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            own = dice.choice(n, min(n, max(1, round(part * needed))), replace=False)
            chosen = dice.choice(names, max(1, round(max(part, 0.5) * len(names))), replace=False)
            among = np.flatnonzero(np.isin(groups, chosen)) if part < 1 else np.arange(m)
            theirs = dice.choice(among, min(len(among), max(1, round(part * m))), replace=False)
            return np.sort(own), np.sort(theirs)

        wholes = [drawn(share) for _ in range(1 if share == 1 else WHOLES)]
        return cls(wholes, [drawn(share / 2) for _ in range(HALVES)], share)

    def estimate(
        self, wholes: Sequence[float], halves: Sequence[float], fraction: float, error: float = 0.0, drift: float = 0.0
    ) -> Estimate:
        """Return what is expected of all documents, of which a fraction was drawn.

        Parameters
        ----------
        wholes, halves
            What was found in each draw.
        fraction
            Share of the documents that was drawn, 0 to 1.
        error
            Standard error of the value that does not depend on the draw.
        drift
            Share of the value by which it may change with every doubling of the documents.
        """
        from scipy.stats import t

        spread, count, half = float(np.var(halves, ddof=1)), len(halves), self.share / 2
        of_draw = (1 - fraction) * spread * half / (1 - half)
        of_wholes = (1 - self.share) * spread / (2 * len(wholes))
        value = float(np.mean(wholes))
        seen = max(0.0, abs(value - float(np.mean(halves))) - 2 * np.sqrt(spread / count))
        doublings = max(0.0, -np.log2(fraction * self.share))
        change = min(DOUBLINGS, doublings) * seen + drift * doublings * abs(value)
        reach = float(t.ppf(0.975, count - 1) * np.sqrt(of_draw + of_wholes + error**2) + change)
        return Estimate(value, value - reach, value + reach)


class Priced(NamedTuple):
    """What is expected if all of the candidate's documents join ours."""

    kept: Estimate  # share of them that is selected
    gain: Estimate  # of J, of a selection of the size that is selected from ours alone
    measured: list[Estimate]  # what else was measured of each draw
    whole: Joined  # the first selection from all that is drawn


Measure = Callable[[Joined, NDArray[np.int64], NDArray[np.int64]], Sequence[tuple[float, float]]]
"""Returns further values of a draw and their standard errors, from what was selected and the places of ours and theirs.

A standard error is of what all draws have in common, such as documents that are held out.
"""


def priced(
    ours: Documents,
    theirs: Documents,
    places: NDArray[np.int64],
    draws: Draws,
    settings: SelectionSettings,
    fraction: float,
    *,
    device: str = "cpu",
    measure: Measure | None = None,
) -> Priced:
    """Select from every draw of ours and of a sample of theirs, and return what is expected of all.

    Parameters
    ----------
    ours, theirs
        Documents that may be selected.
    places
        Of every document of the sample, its place in `theirs`, (n,); -1 if it may not be selected.
    draws
        Of ours and of the sample.
    settings
        The objective and the budget of all of ours.
    fraction
        Share of the candidate's documents that is in the sample.
    measure
        Measures something else in each draw.
    """
    found, errors, joined = list[list[float]](), list[list[float]](), list[Joined]()
    for own, rows in track("selections", [*draws.wholes, *draws.halves], part=(0, 1)):
        chosen = places[rows][places[rows] >= 0]
        budget = settings.budget and max(1, round(settings.budget * fraction * len(rows) / len(places)))
        one = join(ours.take(own), theirs.take(chosen), settings.model_copy(update={"budget": budget}), device)
        more = [] if measure is None else measure(one, own, chosen)
        found.append([float(one.kept[len(own) :].sum()) / max(1, len(rows)), one.gain, *(value for value, _ in more)])
        errors.append([0.0, 0.0, *(error for _, error in more)])
        joined.append(one)
    count, drifts = len(draws.wholes), [0.0, DRIFT] + [0.0] * (len(found[0]) - 2)
    kept, gain, *measured = (
        draws.estimate(values[:count], values[count:], fraction, float(np.mean(own_errors[:count])), drift)
        for values, own_errors, drift in zip(np.array(found).T.tolist(), np.array(errors).T, drifts, strict=True)
    )
    return Priced(kept._replace(low=max(0.0, kept.low), high=min(1.0, kept.high)), gain, measured, joined[0])


def share(hits: NDArray[np.bool_], fraction: float, groups: NDArray[np.int64] | None = None) -> Estimate:
    """Return the share of all documents that a sample of a fraction of them tells, by Wilson's score.

    Parameters
    ----------
    hits
        Which of the sample have it, (n,).
    fraction
        Share of the documents that are in the sample: where it is 1, the share is known.
    groups
        Files of the sample, (n,), if these were drawn among more: files differ more than documents of one.

    Examples
    --------
    >>> found = share(np.arange(1000) < 200, fraction=0.01)
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (0.2, 0.176, 0.226)
    """
    n, value = len(hits), float(hits.mean()) if len(hits) else 0.0
    if not n or fraction >= 1:
        return Estimate(value, value, value)
    effect = 1 - fraction
    if groups is not None and 0 < value < 1:
        names, of = np.unique(groups, return_inverse=True)
        sums = np.bincount(of, hits - value)
        between = float((sums**2).sum()) * len(names) / max(1, len(names) - 1)
        effect *= max(1.0, between / (n * value * (1 - value)))
    effective = max(1, round(n / effect))
    found = wilson(round(value * effective), effective)
    assert found is not None  # noqa: S101 - there is a case
    return Estimate(value, min(found.low, value), max(found.high, value))


class Known(NamedTuple):
    """Where our documents are."""

    centres: NDArray[np.float32]  # (c, d), of unit length
    nearest: float  # cosine with a centre that all but 1% of ours have

    @classmethod
    def of(cls, vectors: NDArray[np.float32], seed: int = 0) -> Self:
        """Fit centres on one half of ours, (n, d), and measure on the other how near they are to them."""
        order = np.random.default_rng(seed).permutation(len(vectors))
        fitted, rest = vectors[order[::2]], vectors[order[1::2]]
        centres = _clustered(fitted, max(1, min(CENTRES, len(fitted) // OF_CENTRE)), seed)[1]
        cosines = nearest_cosines(rest if len(rest) else fitted, centres)
        return cls(centres, float(np.quantile(cosines, 1 - USUAL)))

    def are_new(self, vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which documents, (n, d), are farther from all centres than 99% of ours."""
        return nearest_cosines(vectors, self.centres) < self.nearest


class Topics(NamedTuple):
    """The clusters of their documents."""

    centres: NDArray[np.float32]  # (c, d), of unit length

    @classmethod
    def of(cls, vectors: NDArray[np.float32], seed: int = 0) -> Self:
        """Cluster a sample of them, (n, d)."""
        return cls(_clustered(vectors, max(1, min(CLUSTERS, len(vectors) // OF_CLUSTER)), seed)[1])

    def members(self, vectors: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the cluster of every document, (n,)."""
        return np.asarray((vectors @ self.centres.T).argmax(axis=1), dtype=np.int64)

    def new_ones(self, vectors: NDArray[np.float32], are_new: NDArray[np.bool_], fraction: float) -> Estimate:
        """Return how many clusters are new: most of their documents are."""
        of = self.members(vectors)
        shares = [share(are_new[of == place], fraction) for place in np.unique(of)]
        return Estimate(*(float(sum(getattr(one, name) > 0.5 for one in shares)) for name in Estimate._fields))


def _clustered(vectors: NDArray[np.float32], clusters: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    import torch

    from fineweb_mask.models.selection.k_means import k_means
    from fineweb_mask.models.selection.rows import Rows

    found = k_means(Rows(torch.from_numpy(vectors)), clusters, MOVES, torch.Generator().manual_seed(seed))
    return found.labels.numpy(), found.centres.numpy()


class Rate(NamedTuple):
    """How long one shard took."""

    tokens: int
    seconds: float


def cost(rates: Sequence[Rate], tokens: Estimate) -> Estimate | None:
    """Return the seconds that so many tokens take at measured rates; None without any.

    The interval is of the rates from shard to shard, where there are three or more, and of the tokens.

    >>> cost([Rate(1000, 2.0)], Estimate(5000, 4000, 6000))
    Estimate(value=10.0, low=8.0, high=12.0)
    """
    known = [one for one in rates if one.tokens and one.seconds]
    if not known:
        return None
    sizes, times = np.array(known, dtype=np.float64).T
    rate, error = times.sum() / sizes.sum(), 0.0
    if len(known) > 2:
        from scipy.stats import t

        residuals = times - rate * sizes
        error = t.ppf(0.975, len(known) - 1) * np.sqrt((residuals**2).sum() / (len(known) - 1) * len(known))
        error /= sizes.sum()
    below, above = np.hypot(
        [error * tokens.value, error * tokens.value],
        [rate * (tokens.value - tokens.low), rate * (tokens.high - tokens.value)],
    ).tolist()
    value = float(rate * tokens.value)
    return Estimate(value, max(0.0, value - below), value + above)


def mean(values: NDArray[np.integer], fraction: float, groups: NDArray[np.int64] | None = None) -> Estimate:
    """Return the mean over all documents that a sample of a fraction of them tells, (n,), which is not negative."""
    from scipy.stats import t

    value = float(values.mean()) if len(values) else 0.0
    of = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(of, values - value) if len(values) else np.zeros(1)
    if fraction >= 1 or len(sums) < 2:
        return Estimate(value, value, value)
    error = np.sqrt((1 - fraction) * (sums**2).sum() * len(sums) / (len(sums) - 1)) / len(values)
    reach = float(t.ppf(0.975, len(sums) - 1) * error)
    return Estimate(value, max(0.0, value - reach), value + reach)
