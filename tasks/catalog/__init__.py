"""Show a workspace as tables: DuckDB views of its files, and read-only SQL over them."""
