"""A flow or a task that fails for a foreseeable reason returns it as its state; a bug is raised."""

import pytest

from fineweb_mask.flows.pipeline.failures import fails_in_one_line
from fineweb_mask.models.errors import DataError


@fails_in_one_line
def run(error: Exception | None = None) -> str:
    """Run it."""
    if error is not None:
        raise error
    return "done"


def test_what_succeeds_is_returned() -> None:
    assert run() == "done"
    assert run.__doc__ == "Run it."


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("labels are empty: add some"), "labels are empty: add some"),
        (FileNotFoundError(2, "No such file or directory", "a.parquet"), "a.parquet: No such file or directory"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
)
def test_what_a_person_can_mend_is_the_state_s_message_and_its_result(error: Exception, message: str) -> None:
    state = run(error)
    assert state.is_failed()  # type: ignore[attr-defined]
    assert state.message == message  # type: ignore[attr-defined]
    assert state.result(raise_on_failure=False) is error  # type: ignore[attr-defined]
    with pytest.raises(type(error)):
        state.result()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [TypeError("a bug"), OSError("without a number"), ValueError("a bug")])
def test_a_bug_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(error)
