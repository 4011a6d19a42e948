"""The tests that docs/reliability.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "reliability.md").read_text())


def test_the_promises_name_tests_that_exist():
    assert len(NAMED) > 20
    for file, name in NAMED:
        assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).is_file(), f"{file}::{name}"
