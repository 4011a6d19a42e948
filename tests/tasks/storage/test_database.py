"""DuckDB draws no bars, wherever it runs."""

import duckdb
import pytest

from fineweb_mask.tasks.storage.database import hide_progress


@pytest.mark.parametrize("shown", [True, False])
def test_no_bar_is_shown(shown: bool) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"SET enable_progress_bar = {shown}")
        hide_progress(connection)
        assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]
