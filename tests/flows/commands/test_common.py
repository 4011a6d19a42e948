"""Errors and pages of the commands: what is printed, and the exit codes."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer

from fineweb_mask.flows.commands import _common
from fineweb_mask.flows.commands._common import FAILED, WRONG_USAGE, end_with_page, exit_on_error, exit_on_failure
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.workspace.workspace import Workspace

BUG = "this should not happen, please report it with what --verbose prints: ValueError: "


@pytest.mark.parametrize("error", [SettingsError("mend\x1b this"), FileNotFoundError("mend\x1b this")])
def test_an_error_of_ours_or_of_the_file_system_is_printed_and_a_bug_is_none_of_them(error, capsys):
    with pytest.raises(typer.Exit) as ended, exit_on_error(as_json=True, prefix="first: "):
        raise error
    assert ended.value.exit_code == WRONG_USAGE
    printed = capsys.readouterr()
    assert printed.err == "fineweb-mask: first: mend\\x1b this\n"
    assert json.loads(printed.out) == {"status": "failed", "error": "first: mend\\x1b this"}
    with pytest.raises(ValueError, match="a bug"), exit_on_error(as_json=False):
        raise ValueError("a bug")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (SettingsError("mend this"), FAILED, "mend this"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), FAILED, "a.txt: No such file or directory"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to resume"),
        (typer.Exit(WRONG_USAGE), WRONG_USAGE, ""),
        (ValueError("broken\nSee:\nhttps://example.org"), FAILED, f"{BUG}broken See: https://example.org"),
        (
            UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"),
            FAILED,
            "an argument or a name has to be in UTF-8, received 'a\\udcff'",
        ),
    ],
)
def test_a_failure_is_printed_once_and_of_a_bug_its_type(error, code, message, capsys):
    with pytest.raises(typer.Exit) as ended, exit_on_failure(as_json=False):
        raise error
    assert ended.value.exit_code == code
    assert capsys.readouterr().err.removeprefix("fineweb-mask: ").strip() == message


@pytest.mark.parametrize("quarantined", [{}, {"a": "why"}])
def test_a_page_at_a_url_is_opened_from_its_local_copy(bucket, recipe, monkeypatch, quarantined):
    for name in ("index.html", "plots/a.png"):
        bucket.write(f"ws/sweep/{name}", name.encode())
    settings = load_recipe(recipe, workspace=f"{bucket.url}/ws")
    workspace = Workspace(settings.workspace)
    page = workspace.root / "sweep" / "index.html"
    summary = PageSummary.of(workspace, quarantined, [], page=page, metrics="metrics.json", documents=1)
    opened = []
    monkeypatch.setattr(_common, "open_page", opened.append)
    with pytest.raises(typer.Exit) if quarantined else nullcontext():
        end_with_page(settings, summary, show=True)
    [copied] = map(Path, opened)
    assert copied.read_text() == "index.html"
    assert (copied.parent / "plots" / "a.png").read_text() == "plots/a.png"


@pytest.mark.parametrize(
    ("place", "opened", "works"),
    [
        ("a page/index.html", "file://{root}/a%20page/index.html", True),
        ("a page/index.html", "file://{root}/a%20page/index.html", False),
        ("s3://bucket/index.html", None, True),
    ],
)
def test_a_page_is_opened_or_its_place_is_printed(tmp_path: Path, place: str, opened: str | None, works: bool) -> None:
    browser, record = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {record}\n{"true" if works else "false"}\n')
    browser.chmod(0o755)
    script = f"from fineweb_mask.flows.commands._common import open_page; open_page({place!r})"
    environment = {"BROWSER": str(browser), "PATH": "/nowhere"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (record.read_text().strip() if record.exists() else None) == (opened and opened.format(root=tmp_path))
    assert (f"open {place} yourself" in done.stderr) == (opened is None or not works)
