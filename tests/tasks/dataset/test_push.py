"""Push: the real client against a hub on this machine."""

import json
import logging
import shutil

import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.tasks.storage.atomic import tree_files
from tests.tasks.dataset.conftest import record_again
from tests.tasks.hub_server import HubServer, ask_only

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the client


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with HubServer(tmp_path_factory.mktemp("hub")) as server:
        yield server


@pytest.fixture
def push(hub, tmp_path, monkeypatch):
    """Push with the client of this process."""
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    monkeypatch.setattr(logging, "raiseExceptions", False)  # as the command does

    def call(*arguments, token="hf_good", endpoint=hub.url, offline=False):
        ask_only(endpoint, monkeypatch, tmp_path)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        environment = {"HF_TOKEN": token, "COLUMNS": "300"}
        done = CliRunner().invoke(app, ["push", *map(str, arguments)], env=environment)
        assert isinstance(done.exception, SystemExit | None), done.exception
        assert "hf_" not in done.output.replace("hf_hub", "")
        return done

    return call


@pytest.fixture
def workspace(built, tmp_path):
    shutil.copytree(built.workspace.dataset, tmp_path / "workspace" / "dataset")
    return tmp_path / "workspace"


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in tree_files(folder)}


def test_a_dataset_is_uploaded_as_it_is_and_again_when_it_changed(hub, push, workspace):
    dataset = workspace / "dataset"
    first = push(workspace, "me/first", "--private", "--json")
    assert first.exit_code == 0, first.stderr
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
    assert push(workspace, "me/first").exit_code == 0
    assert not any(line.startswith("PUT") or "/commit/" in line for line in hub.requests[before:])

    old = min((dataset / "data").rglob("*.parquet"))
    old.rename(old.with_name("part-00007.parquet"))
    record_again(dataset)
    again = push(workspace, "me/first")
    assert again.exit_code == 0, again.stderr
    assert f"deleted from an earlier push: {old.relative_to(dataset)}" in again.stdout
    assert again.stdout.count("deleted from an earlier push") == 1
    assert "in the repository, but not of this dataset: notes.md" in again.stdout
    received = hub.files("me/first/main")
    assert received.pop("notes.md") == b"somebody else's"
    del received[".gitattributes"]
    assert received == content(dataset)


def test_a_dataset_at_a_url_is_copied_here_first(hub, push, workspace, bucket):
    dataset = workspace / "dataset"
    for name, file in content(dataset).items():
        bucket.write(f"sets/mine/{name}", file)
    done = push(f"{bucket.url}/sets/mine/", "me/remote")
    assert done.exit_code == 0, done.stderr
    received = hub.files("me/remote/main")
    del received[".gitattributes"]
    assert received == content(dataset)


def test_a_branch_of_its_own_is_made(hub, push, workspace):
    state = workspace / "dataset" / ".cache" / "huggingface"
    state.mkdir(parents=True)
    (state / "token").write_text("the client's own")
    done = push(workspace / "dataset", "me/branches", "--revision", "v2")
    assert done.exit_code == 0, done.stderr
    shutil.rmtree(state.parent)
    assert hub.files("me/branches/v2") == content(workspace / "dataset")
    assert set(hub.files("me/branches/main")) == {".gitattributes"}


def test_a_dry_run_lists_the_files_and_touches_no_network(hub, push, workspace):
    before = hub.requests
    done = push(workspace, "me/never", "--dry-run", token=None)
    assert done.exit_code == 0, done.stderr
    assert hub.requests == before
    files = content(workspace / "dataset")
    for name, data in files.items():
        assert f"{name} " in done.stdout
        assert f"{len(data):,}" in done.stdout
    assert f"{len(files)} files, {sum(map(len, files.values())):,} bytes would be uploaded to me/never" in done.stdout


def test_a_broken_dataset_is_not_pushed(hub, push, workspace):
    before = hub.requests
    target = min((workspace / "dataset" / "data").rglob("*.parquet"))
    target.write_bytes(target.read_bytes()[:-1])
    done = push(workspace, "me/broken")
    assert done.exit_code == 1
    assert "is not pushed: the dataset differs from its provenance.json" in done.stderr
    assert target.name in done.stderr
    assert hub.requests == before


@pytest.mark.parametrize(
    ("repository", "options", "message"),
    [
        ("me/data", {"token": None}, "there is no token for the hub: set HF_TOKEN, or log in with `hf auth login`"),
        ("me/data", {"token": "hf_wrong"}, "the hub does not know this token"),
        ("you/data", {}, "the token may not write there"),
        ("me/data", {"offline": True}, "HF_HUB_OFFLINE is set: unset it to push"),
        ("me/data", {"endpoint": "http://127.0.0.1:9"}, "the upload to http://127.0.0.1:9 failed"),
    ],
)
def test_what_stands_in_the_way_is_said(push, workspace, repository, options, message):
    done = push(workspace, repository, **options)
    assert done.exit_code == 1
    assert message in done.stderr


@pytest.mark.parametrize("repository", ["data", "me/data/x", "me/da ta"])
def test_a_wrong_name_of_a_repository_is_wrong_usage(push, workspace, repository):
    result = push(workspace, repository, "--json")
    assert result.exit_code == 2
    assert "is not the name of a repository on the hub" in json.loads(result.stdout)["error"]


def test_a_dataset_without_a_licence_is_not_pushed(push, workspace):
    record_again(workspace / "dataset", recipe={"materialize": {"license": None}})
    result = push(workspace, "me/data", "--dry-run", "--json")
    assert result.exit_code != 0
    assert "set materialize.license" in json.loads(result.stdout)["error"]
