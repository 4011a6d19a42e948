"""Fixtures that several folders share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the arrays are small; threads that wait for each other are not fast
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")


@pytest.fixture(scope="session")
def sample_corpus() -> Path:
    """The folder of the sample corpus."""
    return ROOT / "data_samples"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real web pages; set FINEWEB_MASK_REAL_DATA where it lies elsewhere."""
    folder = Path(os.environ.get("FINEWEB_MASK_REAL_DATA", ROOT.parent / "shared" / "realdata"))
    if not (folder / "web_mix.parquet").is_file():
        pytest.skip(f"real documents are not at {folder}: set FINEWEB_MASK_REAL_DATA to their folder")
    return folder
