"""Solve small problems by one selector."""

import pytest

from fineweb_mask.models.selection import SelectionSettings, SelectorInputs, select


@pytest.fixture
def selected():
    """Return a function that selects by a solver with options, and returns the documents."""

    def run(solver, features, quality, *, tokens=None, seed=0, also=None, options=None, **settings):
        chosen = SelectionSettings(
            solver=solver,
            seed=seed,
            near_duplicates={"weight": 0},
            **settings,
            **({solver: options} if options else {}),
        )
        return select(features, quality, chosen, tokens=tokens, also=also or SelectorInputs())

    return run
