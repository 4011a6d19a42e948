"""The registry of selectors: every entry is whole, can be imported, and has a line in the documentation."""

import re
from pathlib import Path

import pytest

from fineweb_mask.models.selection.block import solver_of
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS, missing_inputs

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "selectors.md").read_text()


@pytest.mark.parametrize("name", SELECTORS)
def test_an_entry_is_whole_and_has_a_line_in_the_documentation(name):
    entry = SELECTORS[name]
    assert callable(solver_of(name))
    assert SelectionSettings(solver=name).solver == name
    assert missing_inputs(name, has_targets=True, scorers=1) is None
    missing = missing_inputs(name, has_targets=False, scorers=0)
    assert (missing is None) == (not entry.reads & {"targets", "text", "scores"})
    lines = re.findall(rf"^\| `{name}` \|.*", PAGE, re.MULTILINE)
    described = [line for line in lines if line.count("|") == 7]
    assert described, f"docs/selectors.md has no line about {name}"
