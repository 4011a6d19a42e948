"""A run that begins again without its damaged files."""

from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from fineweb_mask.flows.pipeline.start import MOST_REBUILDS, DiscardedError, damaged_discarded, rebuilds_damaged
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.workspace import Workspace


def read(path: Path) -> str:
    if path.read_text() == "damaged":
        raise DamagedFileError(str(path), "of a flipped bit")
    return path.read_text()


def test_a_run_begins_again_without_its_damaged_files(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for name in ("a", "b", "c"):
        (workspace.root / name).write_text("damaged" if name < "c" else "whole")
    runs = []

    @rebuilds_damaged
    def run(ending: str) -> list[str]:
        runs.append(sorted(path.name for path in workspace.root.iterdir()))
        with damaged_discarded(workspace):
            for path in [workspace.root / name for name in ("a", "b", "c")]:
                if not path.exists():
                    path.write_text("built again")
            return [read(workspace.root / name) + ending for name in ("a", "b", "c")]

    with disable_run_logger():
        assert run(ending=".") == ["built again.", "built again.", "whole."]
    assert runs == [["a", "b", "c"], ["b", "c"], ["a", "c"]]


def test_a_file_that_is_damaged_again_and_again_ends_the_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    path = workspace.root / "a"
    runs = []

    @rebuilds_damaged
    def run() -> str:
        runs.append(path.exists())
        path.write_text("damaged")
        with damaged_discarded(workspace):
            return read(path)

    with disable_run_logger(), pytest.raises(DiscardedError, match=r"/a is damaged: of a flipped bit; it is deleted"):
        run()
    assert runs == [False] * (MOST_REBUILDS + 1)


def test_a_damaged_file_of_the_users_stays(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    path = tmp_path / "labels.parquet"
    path.write_text("damaged")
    with pytest.raises(DamagedFileError, match=r"labels\.parquet is damaged"), damaged_discarded(workspace):
        read(path)
    assert path.exists()
