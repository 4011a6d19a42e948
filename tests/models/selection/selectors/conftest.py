"""Solve small problems by one selector."""

from dataclasses import replace
from functools import partial

import pytest

from fineweb_mask.models.selection.block import solver_of
from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS


@pytest.fixture
def selected(monkeypatch):
    """Return a function that selects by a solver with options, and returns the documents.

    `constants` are other values than the solver's function has by default.
    """

    def run(solver, features, quality, *, tokens=None, seed=0, also=None, options=None, constants=None, **settings):
        chosen = SelectionSettings(
            solver=solver,
            seed=seed,
            near_duplicates=None,
            **settings,
            **({solver: options} if options else {}),
        )
        with monkeypatch.context() as patched:
            if constants:
                entry = replace(SELECTORS[solver], solve=partial(solver_of(solver), **constants))
                patched.setitem(SELECTORS, solver, entry)
            return select(features, quality, chosen, tokens=tokens, also=also or SelectorInputs())

    return run
