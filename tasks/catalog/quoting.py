"""Quote names and texts for SQL."""


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
