"""What fuzzing starts from, and what it found: every seed is read, or refused by an error of this package."""

import pytest

from tests.fuzz.targets import SEEDS, TARGETS

CASES = [(target, path) for target in TARGETS for path in sorted((SEEDS / target).iterdir())]


def test_every_target_has_seeds():
    assert {target for target, _ in CASES} == TARGETS.keys()


@pytest.mark.parametrize(("target", "path"), [pytest.param(*case, id=f"{case[0]}-{case[1].name}") for case in CASES])
def test_a_seed_is_read_or_refused(target, path):
    TARGETS[target](path.read_bytes())
