"""What an earlier version wrote is renamed, and then all of it is current."""

from pathlib import Path
from typing import Any

import pytest

from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.listing import Listing, OldNamesError
from fineweb_mask.tasks.workspace.manifest import read_manifest, save_manifest
from fineweb_mask.tasks.workspace.old_names import rename_old_files
from fineweb_mask.tasks.workspace.references import TAGGED
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.conftest import run_pipeline


def rename_to_old(workspace: Workspace) -> None:
    """Give all files the names that the earlier version gave them."""
    for path in workspace.fitted.glob("*.json"):
        manifest = read_manifest(path)
        if manifest is not None:
            files = {TAGGED.sub("", name): file for name, file in manifest.files.items()}
            save_manifest(path, manifest.model_copy(update={"files": files}))
    for path in tree_files(workspace.root):
        old = workspace.root / TAGGED.sub("", path.relative_to(workspace.root).as_posix())
        if old != path:
            old.parent.mkdir(parents=True, exist_ok=True)
            path.rename(old)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in tree_files(folder)}


def test_an_old_workspace_is_refused_and_renamed_as_it_was(recipe: Any, tmp_path: Path) -> None:
    workspace = run_pipeline(recipe.model_copy(update={"workspace": str(tmp_path / "workspace")})).workspace
    Listing.of(workspace)
    before = content(workspace.root)
    rename_to_old(workspace)
    with pytest.raises(OldNamesError, match=f"fineweb-mask migrate {workspace.root}`"):
        Listing.of(workspace)
    assert rename_old_files(workspace) == sum(TAGGED.search(name) is not None for name in before)
    Listing.of(workspace)
    assert content(workspace.root) == before
    assert not any(path.is_dir() and not any(path.iterdir()) for path in workspace.fitted.rglob("*"))
    assert rename_old_files(workspace) == 0


def test_files_of_others_keep_their_names(copied: Any) -> None:
    mine = copied.workspace.root / "documents" / "mine.parquet"
    mine.write_bytes(b"not of a stage")
    Listing.of(copied.workspace)
    assert rename_old_files(copied.workspace) == 0
    assert mine.exists()
