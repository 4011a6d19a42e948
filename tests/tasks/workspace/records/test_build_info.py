"""The recorded packages are the installed ones, and the commit is that of this checkout only."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from fineweb_mask.tasks.workspace.records import build_info
from fineweb_mask.tasks.workspace.records.build_info import RECORDED_PACKAGES, code_and_packages, code_commit

UNKNOWN = {"commit": None, "dirty": None}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the code seems to lie."""
    code = tmp_path / "checkout" / "tasks" / "workspace" / "records" / "build_info.py"
    code.parent.mkdir(parents=True)
    code.touch()
    monkeypatch.setattr(build_info, "__file__", str(code))
    return tmp_path / "checkout"


def test_packages_and_python_are_those_that_run() -> None:
    found = code_and_packages()
    assert found["packages"] == {name: version(name) for name in RECORDED_PACKAGES}
    assert found["python"] == platform.python_version()
    assert found["code"] == {"version": version("fineweb-mask"), **code_commit()}


def test_a_checkout_has_its_commit_and_whether_it_is_dirty(checkout: Path) -> None:
    git(checkout, "init")
    git(checkout, "add", ".")
    git(checkout, "commit", "--message", "first")
    commit = git(checkout, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert code_commit() == {"commit": commit, "dirty": False}
    (checkout / "tasks" / "workspace" / "records" / "build_info.py").write_text("changed")
    assert code_commit() == {"commit": commit, "dirty": True}


def test_code_outside_a_checkout_has_no_commit(checkout: Path) -> None:
    assert code_commit() == UNKNOWN
    git(checkout.parent, "init")  # of something else, below which the code was installed
    git(checkout.parent, "add", ".")
    git(checkout.parent, "commit", "--message", "first")
    assert code_commit() == UNKNOWN


def test_without_git_the_commit_is_unknown(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(checkout, "init")
    monkeypatch.setenv("PATH", "")
    assert code_commit() == UNKNOWN
