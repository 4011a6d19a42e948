"""What a machine has, and whether what is named can be reached."""

from pathlib import Path

import pytest
from click.testing import Result
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app

CORPUS = Path(__file__).resolve().parents[4] / "data_samples" / "corpus"
NOWHERE = "http://127.0.0.1:1"  # where nothing listens


@pytest.fixture(autouse=True)
def without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", NOWHERE)
    monkeypatch.setenv("COLUMNS", "300")


def asked(*paths: object) -> tuple[Result, dict[str, str]]:
    result = CliRunner().invoke(app, ["doctor", *map(str, paths)])
    lines = (line.split(maxsplit=1) for line in result.stdout.splitlines())
    return result, {line[0]: line[1] for line in lines if len(line) == 2}


def test_the_machine_and_its_packages_are_listed() -> None:
    result, lines = asked()
    assert result.exit_code == 0, result.output
    assert lines["packages"].startswith("prefect 3")
    assert int(lines["cores"]) >= 1
    assert "GiB" in lines["memory"]
    assert "for ingest.near_dedup: minhash" in lines["rensa"]
    assert f"hub       {NOWHERE} does not answer" in result.stdout
    assert "a temporary server" in lines["Prefect"]


def test_sources_and_workspaces_are_looked_at(tmp_path: Path) -> None:
    result, lines = asked(CORPUS, tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert lines[str(CORPUS)] == "4 source files, 2.1 MiB"
    assert "a new workspace can be here" in lines[str(tmp_path / "new")]
    assert not (tmp_path / "new").exists()


def test_a_folder_of_something_else_and_a_server_that_does_not_answer_fail(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").touch()
    with temporary_settings({PREFECT_API_URL: f"{NOWHERE}/api"}):
        result, lines = asked(tmp_path)
    assert result.exit_code == 1
    assert "holds 'thesis.doc', and is not a workspace" in lines[str(tmp_path)]
    assert "does not answer" in lines["Prefect"]
    assert "unset PREFECT_API_URL" in lines["Prefect"]


def test_a_store_that_does_not_answer_is_given_up_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": NOWHERE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("fineweb_mask.tasks.storage.remote.retries.BRIEF_SECONDS", 0.2)
    result, lines = asked("s3://bucket/web")
    assert result.exit_code == 1
    assert "s3://bucket/web" in lines
