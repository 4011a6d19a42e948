"""A page is shown in the browser that the user has."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("place", "opened"), [("a page/index.html", "file://{root}/a%20page/index.html"), ("s3://bucket/index.html", None)]
)
@pytest.mark.parametrize("works", [True, False])
def test_a_page_is_opened_or_the_user_told_where_it_is(
    tmp_path: Path, place: str, opened: str | None, works: bool
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n{"true" if works else "false"}\n')
    browser.chmod(0o755)
    script = f"from fineweb_mask.flows.commands._common import open_page; open_page({place!r})"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"BROWSER": str(browser), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    record = tmp_path / "opened"
    assert (record.read_text().strip() if record.exists() else None) == (opened and opened.format(root=tmp_path))
    assert (f"open {place} yourself" in done.stderr) == (opened is None or not works)
