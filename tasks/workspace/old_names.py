"""Rename the files of an earlier version, whose names did not tell their keys, so that they are not built again."""

import json
from collections.abc import Iterator
from pathlib import Path

from fineweb_mask.tasks.storage.atomic import move_file, remove_file
from fineweb_mask.tasks.workspace.manifest import read_manifest, save_manifest
from fineweb_mask.tasks.workspace.references import TAGGED, content_key, digest, shard_and_tag
from fineweb_mask.tasks.workspace.stage_parquet import key_and_details, read_footer
from fineweb_mask.tasks.workspace.workspace import Workspace

PRODUCTS = ("fitted/known", *(f"probe/{name}" for name in ("held_out", "tokenizer", "tokens", "models", "answers")))
"""Folders of products that are folders themselves."""

FIXED = ("dataset", "reports", "runs", "index", "cache")
"""Folders whose files keep their names."""


def rename_old_files(workspace: Workspace) -> int:
    """Rename what an earlier version wrote, and return the number of files; nothing else may use the workspace."""
    moves = [
        *_stage_files(workspace),
        *(move for name in PRODUCTS for move in _folders(workspace, name)),
        *_records(workspace),
    ]
    for old, new in moves:
        move_file(old, new)
    for checkpoints in list(workspace.root.rglob(".parts/*/*/")):
        if TAGGED.search(checkpoints.parent.name) is None:
            checkpoints.rename(checkpoints.parent.with_name(f"{checkpoints.parent.name}.{checkpoints.name[:16]}"))
    renamed = len(moves) + sum(_move_model(workspace, path) for path in workspace.files("fitted/*.json"))
    for folder in ("fitted", "probe"):
        workspace.remove_empty_folders(folder)
    return renamed


def _stage_files(workspace: Workspace) -> Iterator[tuple[Path, Path]]:
    """Yield the old and the new path of every stage file."""
    for name in workspace.sizes(""):
        path = workspace.root / name
        if name.startswith(tuple(f"{folder}/" for folder in FIXED)) or shard_and_tag(name) is not None:
            continue
        footer = key_and_details(read_footer(path))
        if footer is not None:
            key, details = footer
            if "content" in details:  # duplicates, which the earlier version kept under the key of the whole corpus
                key = content_key(details["content"])
            yield path, path.with_name(f"{path.name.removesuffix('.parquet')}.{key.tag}.parquet")


def _folders(workspace: Workspace, below: str) -> Iterator[tuple[Path, Path]]:
    """Yield the old and the new path of every file of the products below a folder, each a folder with a manifest."""
    for name in workspace.sizes(below, suffix="/manifest.json"):
        folder = (workspace.root / name).parent
        manifest = read_manifest(workspace.root / name)
        if manifest is None or TAGGED.search(folder.name) is not None:
            continue
        new = folder.with_name(f"{folder.name}.{manifest.key.tag}")
        for file in [*manifest.files, "manifest.json"]:  # the manifest last
            yield folder / file, new / file


def _records(workspace: Workspace) -> Iterator[tuple[Path, Path]]:
    """Yield the old and the new path of the ranges of the objective's terms, and of the times of selections."""
    for folder in ("compare", "sweep", "probe"):
        for name in workspace.sizes(folder, suffix=".json"):
            path = workspace.root / name
            if TAGGED.search(path.name) is not None:
                continue
            if path.parent.name == "ranges" and (manifest := read_manifest(path)) is not None:
                yield path, path.with_name(f"{path.stem}.{manifest.key.tag}.json")
            elif path.name.endswith(".seconds.json"):
                tag = json.loads(workspace.local(name).read_text())["key"][:16]
                yield path, path.with_name(f"{path.name.removesuffix('.seconds.json')}.{tag}.seconds.json")


def _move_model(workspace: Workspace, path: Path) -> int:
    """Rename a fitted model, which is a manifest and a file or folder beside it; return the number of files."""
    manifest = read_manifest(path)
    if manifest is None or TAGGED.search(path.name) is not None:
        return 0
    files = {}
    for name, file in manifest.files.items():
        tag = digest([manifest.key.fingerprint, manifest.fitted_on])[:16]
        new = f"{path.stem}.{tag}{name.removeprefix(path.stem)}"
        move_file(workspace.root / "fitted" / name, workspace.root / "fitted" / new)
        files[new] = file
    save_manifest(path.with_name(f"{path.stem}.{manifest.key.tag}.json"), manifest.model_copy(update={"files": files}))
    remove_file(path)
    return 1 + len(files)
