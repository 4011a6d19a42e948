"""Call the command in this process, or in a new process as a user does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.processes.environment import ENVIRONMENT_DEFAULTS

ROOT = Path(__file__).resolve().parents[2]
COMMAND = str(Path(sys.executable).with_name("fineweb-mask"))


@pytest.fixture
def recipe(tmp_path):
    content = yaml.safe_load((ROOT / "deployments" / "recipes" / "sample.yaml").read_text())
    content["workspace"] = str(tmp_path / "workspace")
    content["source"]["path"] = str(ROOT / "data_samples" / "corpus")
    content["quality"]["scorers"][0]["labels"]["path"] = str(ROOT / "data_samples" / "labels.parquet")
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture
def invoke(monkeypatch):
    for name, value in ENVIRONMENT_DEFAULTS.items():  # what the command sets is gone after the test
        monkeypatch.setenv(name, value)

    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})

    return call


@pytest.fixture(scope="session")
def call(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return the function that runs the command in a new process, with no server set up."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**mine, "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect"))}

    def run(*arguments: Any, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, *map(str, arguments)]
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    return run
