"""Quote names, texts and paths for SQL."""

import glob


def identifier(name: str) -> str:
    """Return the name of a column or table as a quoted SQL identifier.

    >>> print(identifier('the "best" column'))
    "the ""best"" column"
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL string literal.

    >>> print(literal("it's"))
    'it''s'
    """
    return "'" + text.replace("'", "''") + "'"


def pattern_of(path: str) -> str:
    """Return the pattern by which DuckDB finds one file; it takes every path for a pattern.

    >>> pattern_of("/data/[a].parquet")
    '/data/[[]a].parquet'
    """
    return glob.escape(path)
