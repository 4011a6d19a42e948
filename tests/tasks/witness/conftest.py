"""What the tests of the witness share."""

from typing import Any

import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="session")
def texts_in() -> Any:
    """Return the function that reads the texts of a Parquet file."""

    def read(path: Any) -> list[str]:
        return list(pq.read_table(path, columns=["text"])["text"].to_pylist())

    return read
