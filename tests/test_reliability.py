"""The tests that docs/reliability.md names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "reliability.md").read_text())


def test_promises_name_tests() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).is_file()
