"""Select documents from one block, and prove how much better any selection could be."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.block import BlockSolver, Selection
from fineweb_mask.models.selection.inputs import SelectionInputError, SelectorInputs, combined_quality
from fineweb_mask.models.selection.metrics.base import Metric
from fineweb_mask.models.selection.objective import Ranges
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS, missing_inputs
from fineweb_mask.models.settings.validation import validated


@same_threads()
def select(
    features: Any,  # noqa: ANN401 - numpy or torch, (n, d), or a column of vectors
    quality: Any,  # noqa: ANN401 - numpy or torch, (n,) or (n, columns)
    settings: SelectionSettings | Mapping[str, Any] | None = None,
    *,
    device: str | torch.device = "cpu",
    tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
    quality_weights: Sequence[float] | None = None,
    also: SelectorInputs | None = None,
    own_metrics: Mapping[str, tuple[Metric, float]] | None = None,
    ranges: Ranges | None = None,
    **changes: Any,  # noqa: ANN401 - a setting's value
) -> Selection:
    """Select the documents that together maximise lamb * quality + (1 - lamb) * diversity.

    Parameters
    ----------
    features
        Embeddings, (n, d) float16 or float32, or a column of pandas or Arrow with a vector in each row. Rows are
        normalised to unit length in float32; those of another length or type are copied.
    quality
        (n,) or (n, columns) float32; np.zeros(n) selects by diversity alone. Several columns are standardised and
        summed under `quality_weights`.
    settings
        What to maximise and how, as `SelectionSettings` or a dictionary of some of them: `{"lamb": 0.7}`.
    device
        "cpu", "cuda" or a torch device.
    tokens
        Token count of each document, (n,) integers; required with `budget_by="tokens"`. The selection then
        never exceeds the budget of tokens and leaves no room for another document.
    quality_weights
        Weight of each column of `quality` after standardising it; None: equal weights.
    also
        What some solvers also read: the scores of several scorers, groups, target examples, importance weights.
    own_metrics
        Your own metrics in addition to those of `settings.metrics` (which may be `{}`): name -> (metric, weight).
        A metric is of a subclass of `fineweb_mask.Metric`, with `value(masks)`. There is then no upper bound.
    ranges
        The scales of the terms, as `BlockSolver.ranges` finds them for the same documents, budget and metrics: several
        selections of one block can share them.
    changes
        Settings by keyword, instead of those of `settings`: `select_ratio=0.1, lamb=0.3`.

    Returns
    -------
    Selection
        Identical, bit for bit, for the same inputs, seed and device.

    Raises
    ------
    SelectionInputError
        If an input cannot be selected from; the message names column, first bad row and remedy.
    SettingsError
        If a setting does not exist or is not allowed.
    FalseBoundError
        If the selection exceeds its upper bound, because a metric of your own has a wrong tangent.

    Examples
    --------
    >>> import numpy as np
    >>> from fineweb_mask.models.selection.selector import select
    >>> random = np.random.default_rng(0)
    >>> features, quality = random.normal(size=(100, 8)), random.random(100)
    >>> selection = select(features, quality, metrics="facility", select_ratio=0.3)
    >>> len(selection.indices)
    30
    >>> selection.random_objective < selection.objective <= selection.upper_bound
    True
    """
    if changes or not isinstance(settings, SelectionSettings):
        given = settings.model_dump(exclude_unset=True) if isinstance(settings, SelectionSettings) else settings or {}
        settings = validated(SelectionSettings, {**given, **changes})
    if not settings.metric_weights and not own_metrics:
        raise SelectionInputError("metrics is empty and there are no own_metrics: name at least one")
    if quality_weights is not None or np.ndim(quality) > 1:
        quality = combined_quality(quality, quality_weights)
    block = BlockSolver(
        features, quality, settings, device=device, tokens=tokens, also=also, own_metrics=own_metrics, ranges=ranges
    )
    reads = SELECTORS[settings.solver].reads
    has_targets = (block.also.targets if "targets" in reads else block.also.log_weights) is not None
    missing = missing_inputs(settings.solver, has_targets=has_targets, scorers=len(block.also.scores))
    if missing is not None:
        raise SelectionInputError(f"solver {settings.solver}: {missing}; in Python, pass it in `also`")
    return block.selection(block.solve())
