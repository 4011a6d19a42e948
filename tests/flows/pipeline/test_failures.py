"""A flow or a task that fails for a foreseeable reason returns it as its state; a bug is raised. A run begins
again without its damaged files."""

from pathlib import Path

import pytest
import torch
from prefect.logging import disable_run_logger

from fineweb_mask.flows.pipeline.failures import (
    MOST_REBUILDS,
    DiscardedError,
    damaged_discarded,
    fails_in_one_line,
)
from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.workspace import Workspace


@fails_in_one_line
def run(error: Exception) -> None:
    """Run it."""
    raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("labels are empty: add some"), "labels are empty: add some"),
        (FileNotFoundError(2, "No such file or directory", "a.parquet"), "a.parquet: No such file or directory"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (
            torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB"),
            "memory ran out: CUDA out of memory. Tried to allocate 2 GiB: use a smaller engine.workers or "
            "selection.block_size, and run again to resume",
        ),
    ],
)
def test_what_a_person_can_mend_is_the_state_s_message_and_its_result(error: Exception, message: str) -> None:
    state = run(error)
    assert (run.__doc__, state.is_failed(), state.message) == ("Run it.", True, message)  # type: ignore[attr-defined]
    assert state.result(raise_on_failure=False) is error  # type: ignore[attr-defined]
    with pytest.raises(type(error)):
        state.result()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [TypeError("a bug"), OSError("without a number")])
def test_a_bug_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(error)


def read(path: Path) -> str:
    if path.read_text() == "damaged":
        raise DamagedFileError(str(path), "of a flipped bit")
    return path.read_text()


def test_a_run_begins_again_without_its_damaged_files(tmp_path: Path) -> None:
    workspace, runs = Workspace(tmp_path), []
    for name in "abc":
        (workspace.root / name).write_text("damaged" if name < "c" else "whole")

    @fails_in_one_line
    def run(ending: str) -> list[str]:
        runs.append(sorted(path.name for path in workspace.root.iterdir()))
        with damaged_discarded(workspace):
            for path in [workspace.root / name for name in "abc"]:
                if not path.exists():
                    path.write_text("built again")
            return [read(workspace.root / name) + ending for name in "abc"]

    with disable_run_logger():
        assert run(ending=".") == ["built again.", "built again.", "whole."]
    assert runs == [["a", "b", "c"], ["b", "c"], ["a", "c"]]


def test_a_file_that_is_damaged_again_and_again_ends_the_run_and_one_of_the_users_stays(tmp_path: Path) -> None:
    workspace, runs = Workspace(tmp_path / "workspace"), []
    path, labels = workspace.root / "a", tmp_path / "labels.parquet"
    workspace.root.mkdir()

    @fails_in_one_line
    def run() -> str:
        runs.append(path.exists())
        path.write_text("damaged")
        with damaged_discarded(workspace):
            return read(path)

    with disable_run_logger():
        state = run()
    assert "/a is damaged: of a flipped bit; it is deleted" in state.message  # type: ignore[attr-defined]
    with pytest.raises(DiscardedError):
        state.result()  # type: ignore[attr-defined]
    assert runs == [False] * (MOST_REBUILDS + 1)
    labels.write_text("damaged")
    with pytest.raises(DamagedFileError, match=r"labels\.parquet is damaged"), damaged_discarded(workspace):
        read(labels)
    assert labels.exists()
