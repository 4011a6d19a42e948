"""Push: the real client against a hub on this machine."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.tasks.dataset.output import write_record
from fineweb_mask.tasks.dataset.push import planned
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, is_whole, read_manifest
from tests.tasks.hub_server import HubServer

ROOT = Path(__file__).resolve().parents[3]


Push = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    with HubServer(tmp_path_factory.mktemp("hub")) as server:
        yield server


@pytest.fixture
def push(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Push:
    """Push as a user does, in a separate process: the client reads its environment when it is imported."""
    home = tmp_path_factory.mktemp("home")

    def call(*arguments: object, token: str | None = "hf_good", **environment: str) -> Any:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        mine |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "DO_NOT_TRACK": "1"}
        mine |= environment | ({} if token is None else {"HF_TOKEN": token})
        command = [sys.executable, "-m", "fineweb_mask.flows.cli", "push", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, env=mine, capture_output=True, text=True, timeout=120, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        assert "hf_" not in (done.stdout + done.stderr).replace("hf_hub", "")
        return done

    return call


@pytest.fixture
def workspace(built: Any, tmp_path: Path) -> Path:
    shutil.copytree(built.workspace.dataset, tmp_path / "workspace" / "dataset")
    return tmp_path / "workspace"


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in tree_files(folder)}


def test_a_dataset_is_uploaded_as_it_is_and_again_when_it_changed(hub: HubServer, push: Push, workspace: Path) -> None:
    dataset = workspace / "dataset"
    first = push(workspace, "me/first", "--private", "--json")
    assert first.returncode == 0, first.stderr
    answer = json.loads(first.stdout.splitlines()[-1])
    assert answer["status"] == "pushed"
    assert answer["url"].startswith(f"{hub.url}/datasets/me/first/commit/")
    received = hub.files("me/first/main")
    assert received.pop(".gitattributes")
    assert received == content(dataset)
    created = json.loads((hub.folder / "repos/me/first/created.json").read_text())
    assert (created["type"], created["visibility"]) == ("dataset", "private")

    (hub.folder / "repos/me/first/main/notes.md").write_text("somebody else's")
    before = len(hub.requests)
    assert push(workspace, "me/first").returncode == 0
    assert not any(line.startswith("PUT") or "/commit/" in line for line in hub.requests[before:])

    old = min((dataset / "data").rglob("*.parquet"))
    old.rename(old.with_name("part-00007.parquet"))
    manifest = read_manifest(dataset / PROVENANCE)
    assert manifest is not None
    files = [path for path in tree_files(dataset) if path.name != PROVENANCE]
    write_record(dataset, manifest.key, files, manifest.details)
    again = push(workspace, "me/first")
    assert again.returncode == 0, again.stderr
    assert f"deleted from an earlier push: {old.relative_to(dataset)}" in again.stdout
    assert "in the repository, but not of this dataset: notes.md" in again.stdout
    received = hub.files("me/first/main")
    assert received.pop("notes.md") == b"somebody else's"
    del received[".gitattributes"]
    assert received == content(dataset)
    whole = read_manifest(dataset / PROVENANCE)
    assert whole is not None
    assert is_whole(dataset / PROVENANCE, whole)


def test_a_dataset_at_a_url_is_copied_here_first(hub: HubServer, push: Push, workspace: Path, bucket: Any) -> None:
    dataset = workspace / "dataset"
    for name, file in content(dataset).items():
        bucket.write(f"sets/mine/{name}", file)
    done = push(f"{bucket.url}/sets/mine/", "me/remote")
    assert done.returncode == 0, done.stderr
    received = hub.files("me/remote/main")
    del received[".gitattributes"]
    assert received == content(dataset)


def test_a_branch_of_its_own_is_made(hub: HubServer, push: Push, workspace: Path) -> None:
    state = workspace / "dataset" / ".cache" / "huggingface"
    state.mkdir(parents=True)
    (state / "token").write_text("the client's own")
    done = push(workspace / "dataset", "me/branches", "--revision", "v2")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(state.parent)
    assert hub.files("me/branches/v2") == content(workspace / "dataset")
    assert set(hub.files("me/branches/main")) == {".gitattributes"}


def test_a_dry_run_lists_the_files_and_touches_no_network(hub: HubServer, push: Push, workspace: Path) -> None:
    before = hub.requests
    done = push(workspace, "me/never", "--dry-run", token=None)
    assert done.returncode == 0, done.stderr
    assert hub.requests == before
    files = content(workspace / "dataset")
    for name, data in files.items():
        assert f"{name} " in done.stdout
        assert f"{len(data):,}" in done.stdout
    assert f"{len(files)} files, {sum(map(len, files.values())):,} bytes would be uploaded to me/never" in done.stdout


def test_a_broken_dataset_is_not_pushed(hub: HubServer, push: Push, workspace: Path) -> None:
    before = hub.requests
    target = min((workspace / "dataset" / "data").rglob("*.parquet"))
    target.write_bytes(target.read_bytes()[:-1])
    done = push(workspace, "me/broken")
    assert done.returncode == 1
    assert "is not pushed: the dataset differs from its provenance.json" in done.stderr
    assert target.name in done.stderr
    assert hub.requests == before


@pytest.mark.parametrize(
    ("repository", "token", "environment", "message"),
    [
        ("me/data", None, {}, "there is no token for the hub: set HF_TOKEN, or log in with `hf auth login`"),
        ("me/data", "hf_wrong", {}, "the hub does not know this token"),
        ("you/data", "hf_good", {}, "the token may not write there"),
        ("me/data", "hf_good", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set: unset it to push"),
        ("me/data", "hf_good", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the upload to http://127.0.0.1:9 failed"),
    ],
)
def test_what_stands_in_the_way_is_said(
    push: Push, workspace: Path, repository: str, token: str | None, environment: dict[str, str], message: str
) -> None:
    done = push(workspace, repository, token=token, **environment)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.parametrize("repository", ["data", "me/data/x", "me/da ta", "me/..", "/data", "me/", ""])
def test_a_wrong_name_of_a_repository_is_wrong_usage(workspace: Path, repository: str) -> None:
    result = CliRunner().invoke(app, ["push", str(workspace), repository, "--json"])
    assert result.exit_code == 2
    assert "is not the name of a repository on the hub" in json.loads(result.stdout)["error"]


def test_a_dataset_without_a_licence_is_not_pushed(copied: Any) -> None:
    copied.making.with_settings(license=None).write()
    result = CliRunner().invoke(app, ["push", str(copied.workspace.root), "me/data", "--dry-run", "--json"])
    assert result.exit_code != 0
    assert "set materialize.license" in json.loads(result.stdout)["error"]


def test_a_plan_names_every_file_of_the_record(built: Any) -> None:
    dataset = built.workspace.dataset
    manifest = read_manifest(dataset / PROVENANCE)
    assert manifest is not None
    plan = planned(dataset, manifest, "me/data", "main")
    assert {file.file: file.bytes for file in plan.files} == {
        name: len(data) for name, data in content(dataset).items()
    }
