"""A stranger's file, from the installed wheel to the first screen of its report in one command, without a network."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings.quality import NO_QUALITY
from tests.wheel import Installed, write_hostile_packages

NO_NETWORK = """
import os, socket

HERE = {"127.0.0.1", "::1", "localhost", "0.0.0.0", "", None, socket.gethostname()}
look_up, connect = socket.getaddrinfo, socket.socket.connect


def check(host):
    if (host.decode() if isinstance(host, bytes) else host) not in HERE:
        with open(os.environ["ASKED"], "a") as log:
            log.write(f"{host}\\n")
        raise OSError(101, "Network is unreachable")


def guarded_look_up(host, *arguments, **options):
    check(host)
    return look_up(host, *arguments, **options)


def guarded_connect(own, address):
    check(address[0] if isinstance(address, tuple) else None)
    return connect(own, address)


socket.getaddrinfo, socket.socket.connect = guarded_look_up, guarded_connect
"""
"""What Python imports at its start: nothing but this machine is reached, and what was asked for is written down."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def ran(installed_wheel: Installed, real_data: Path, tmp_path_factory) -> Path:
    """The workspace of a file that was run by its name, in a folder with packages that are in the wheel's way."""
    folder = write_hostile_packages(tmp_path_factory.mktemp("own"))
    (folder / "offline").mkdir()
    (folder / "offline" / "sitecustomize.py").write_text(NO_NETWORK)
    table = pq.read_table(real_data / "web_mix.parquet").slice(0, 1_100)
    scores = [name for name in table.schema.names if name.startswith("quality")]  # a stranger's file has none
    pq.write_table(table.drop_columns(scores), folder / "mine.parquet")
    asked = folder / "asked"
    done = installed_wheel.call(
        folder, "fineweb-mask", "run", "mine.parquet", "--json", PYTHONPATH=str(folder / "offline"), ASKED=str(asked)
    )
    assert done.returncode == 0, done.stderr
    assert not asked.exists(), asked.read_text()
    said = done.stderr.splitlines()
    assert said[0] == f"documents  {table.num_rows:,}; looked at 1,000 rows"
    assert [line for line in said if line.startswith("recipe     workspaces/mine/recipe.yaml: 25% of the documents")]
    assert NO_QUALITY in said
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["documents_in"] == table.num_rows
    assert summary["counts"]["selected"] == round(0.25 * summary["counts"]["documents_eligible"])
    return folder / "workspaces" / "mine"


def test_the_first_screen_says_what_the_quality_is_not_and_what_is_true(browser, ran: Path) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto((ran / "reports" / "index.html").as_uri())
    words = page.locator("body").inner_text()
    assert words.index(NO_QUALITY) < words.index("Where documents went")
    first = page.get_by_text(NO_QUALITY.partition(":")[0]).first.bounding_box()
    assert first is not None
    assert first["y"] < 900
    page.close()
    words = (ran / "reports" / "index.md").read_text().replace("\\", "")
    masks = pq.read_table(next((ran / "masks").glob("*.parquet")))
    eligible, selected = masks["block"].is_valid().to_numpy(), masks["selected"].to_numpy(zero_copy_only=False)
    assert f"{selected.sum():,} of {eligible.sum():,} eligible documents" in words


def test_the_recipe_runs_again_from_its_files(installed_wheel: Installed, ran: Path, tmp_path: Path) -> None:
    shutil.copytree(ran.parents[1], tmp_path / "copied", symlinks=True)
    done = installed_wheel.call(tmp_path / "copied", "fineweb-mask", "run", "mine.parquet", "--json")
    assert done.returncode == 0, done.stderr
    assert "recipe     workspaces/mine/recipe.yaml, of an earlier run; without it a new one is made" in done.stderr
    assert all(stage["files"] == stage["cached"] for stage in json.loads(done.stdout.splitlines()[-1])["stages"])
