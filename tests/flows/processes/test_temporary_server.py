"""Whether a run starts a server of its own; that it ends with its run is shown in tests/integration."""

from pathlib import Path

import pytest

from fineweb_mask.flows.processes.temporary_server import is_surely_used


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_it_is_used_where_nothing_names_another() -> None:
    assert is_surely_used()
    Path("pyproject.toml").write_text('[project]\nname = "x"\n')
    assert is_surely_used()


@pytest.mark.parametrize("name", ["PREFECT_API_URL", "PREFECT_PROFILE"])
def test_a_variable_may_name_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:4200/api")
    assert not is_surely_used()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("../home/profiles.toml", '[profiles.team]\nPREFECT_API_URL = "http://prefect/api"\n'),
        (".env", "PREFECT_API_URL=http://prefect/api\n"),
        ("prefect.toml", '[api]\nurl = "http://prefect/api"\n'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://prefect/api"\n'),
    ],
)
def test_a_file_that_prefect_reads_may_name_another(path: str, text: str) -> None:
    Path(path).write_text(text)
    assert not is_surely_used()
