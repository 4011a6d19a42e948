"""Keep DuckDB from drawing bars of its own."""

import duckdb


def hide_progress(connection: duckdb.DuckDBPyConnection) -> None:
    """Turn off DuckDB's progress bar, which is on in terminals; in a notebook without ipywidgets it cannot be set."""
    shown = connection.execute("SELECT current_setting('enable_progress_bar')").fetchone()
    if shown is not None and shown[0]:
        connection.execute("SET enable_progress_bar = false")
