"""What the README and the documentation say works: links, commands, settings, Python, the notebook, the site."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
import yaml
from prefect.settings import PREFECT_API_URL
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.recipe import load_recipe, validate
from fineweb_mask.models.settings import PipelineSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOK = sorted((ROOT / "benchmarks" / "notebook").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?:\]\(|href=\")([^)\"\s]+)")
VARIABLE = re.compile(r"[A-Z_]+=\S*")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    found = [Block(page.name, *block) for page in PAGES for block in BLOCK.findall(page.read_text())]
    return [block for block in found if block.language in languages]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `fineweb-mask` command of a block."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True) if "fineweb-mask" in line else []
        while words and VARIABLE.fullmatch(words[0]):
            del words[0]
        if words and words[0] in ("fineweb-mask", ".venv/bin/fineweb-mask"):
            yield words[1:]


COMMANDS = [(block.page, arguments) for block in blocks("") for arguments in commands(block.text)]
RECIPES = [block for block in blocks("yaml") if not block.text.startswith("apiVersion")]  # the other is Kubernetes'


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOK], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    links = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Links to sections that are not there are warnings, too."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    reference = (tmp_path / "site" / "python.html").read_text()
    assert all(f'id="fineweb_mask.{name}"' in reference for name in ("select", "curate", "OpenedWorkspace"))
    pages = [path.read_text() for path in (tmp_path / "site").rglob("*.html")]
    loaded = [
        link for page in pages for link in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(http[^"]+)"', page)
    ]
    assert loaded == []  # from other servers


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=lambda given: str(given)[:60])
def test_commands_have_the_options_that_are_shown(page: str, arguments: list[str]) -> None:
    group = typer.main.get_command(app)
    with group.make_context("fineweb-mask", list(arguments)) as context:
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        with command.make_context(name, rest, parent=context):
            pass


@pytest.mark.parametrize("block", RECIPES, ids=lambda block: block.page)
def test_settings_that_are_shown_are_allowed(block: Block) -> None:
    shown = yaml.safe_load(block.text)
    recipe = load_recipe("sample", {}).model_dump(mode="json")
    for section, settings in shown.items():
        recipe[section] = {**recipe[section], **settings} if isinstance(settings, dict) else settings
    assert validate(PipelineSettings, recipe)


@pytest.fixture
def at_home(sample_corpus: Path, server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a folder as the checkout's, but small, with a corpus and arrays of a user's own and the tests' server."""
    recipes = Path(shutil.copytree(ROOT / "deployments" / "recipes", tmp_path / "deployments" / "recipes"))
    recipe = recipes / "sample.yaml"
    recipe.write_text(recipe.read_text().replace("embedding:\n", "embedding:\n  static_dimensions: 64\n"))
    monkeypatch.setattr("fineweb_mask.flows.recipe.PACKAGED", recipes)
    (tmp_path / "data_samples").symlink_to(sample_corpus)
    corpus = pq.read_table(ROOT / "data_samples" / "corpus" / "CC-MAIN-2023-50_00000.parquet")
    random = np.random.default_rng(0)
    pq.write_table(corpus.slice(0, 500), tmp_path / "my_corpus.parquet")
    np.save(tmp_path / "vectors.npy", random.normal(size=(500, 16)).astype(np.float32))
    np.save(tmp_path / "quality.npy", random.normal(size=500).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))  # else each command starts one of its own
    return tmp_path


@pytest.mark.long
def test_the_python_that_is_shown_runs(at_home: Path) -> None:
    shown = blocks("python")
    assert {block.page for block in shown} >= {"README.md", "python.md"}
    for block in shown:
        exec(compile(block.text, block.page, "exec"), {"__name__": "shown"})


@pytest.mark.long
def test_the_tutorial_runs_as_it_is_written(at_home: Path) -> None:
    tutorial = [arguments for page, arguments in COMMANDS if page == "tutorial.md"]
    assert len(tutorial) > 12
    for shown in tutorial:
        if shown[0] == "explore":
            continue  # it would serve until it is interrupted
        arguments = [argument for argument in shown if argument != "--open"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{arguments}: {done.output[-3_000:]}"
    assert (at_home / "workspaces" / "mine" / "compare" / "index.html").is_file()


@pytest.mark.long
def test_the_notebook_runs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    found = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    results = [
        [one["data"]["text/plain"] for one in outputs if one.output_type == "execute_result"] for outputs in found
    ]
    assert results[0] == [shown[0][0]["data"]["text/plain"]]
    gaps = [re.search(r"gap ([\d.]+)%", text) for text in (results[1][0], "".join(shown[1][0]["data"]["text/plain"]))]
    now, then = (float(gap[1]) for gap in gaps if gap is not None)
    assert abs(now - then) < 0.1
    assert json.dumps(results[3]) == json.dumps([shown[3][0]["data"]["text/plain"]])  # documents, and those selected
    assert "rich/live.py" not in str(found)  # it warns where ipywidgets is missing
