"""One Prefect server for the session, and one finished workspace that tests copy before they damage it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from flows.curate import RunSummary, run_curate
from flows.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
SMALL_ENCODER = (  # enough to tell topics apart, and fitted in a second
    "embedding.static_vocabulary=4000",
    "embedding.static_dimensions=256",
    "embedding.static_fit_documents=2000",
)

RunSample = Callable[..., RunSummary]


@pytest.fixture(scope="session")
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=90), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@pytest.fixture(scope="session")
def small_encoder() -> tuple[str, ...]:
    """The settings of the encoder that the finished workspace was made with."""
    return SMALL_ENCODER


@pytest.fixture(scope="session")
def run_sample(server: None) -> RunSample:
    """Run the sample recipe on the sample corpus with a small encoder."""

    def run(
        workspace: Path, *overrides: str, refit: list[str] | None = None, refresh: list[str] | None = None
    ) -> RunSummary:
        settings = load_recipe(
            ROOT / "deployments" / "recipes" / "sample.yaml",
            [
                f"source.path={ROOT / 'data_samples' / 'corpus'}",
                f"quality.scorers.0.labels.path={ROOT / 'data_samples' / 'labels.parquet'}",
                *SMALL_ENCODER,
                *overrides,
            ],
            str(workspace),
        )
        return run_curate(settings, refit, refresh)

    return run


@pytest.fixture(scope="session")
def finished(run_sample: RunSample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which the sample was run; to be read only."""
    workspace = tmp_path_factory.mktemp("finished") / "workspace"
    run_sample(workspace)
    return workspace


@pytest.fixture
def workspace(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished workspace: it may be moved, for nothing in it holds its path."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))
