"""Quoted texts and names are read back as they were."""

import duckdb
import pytest

from fineweb_mask.tasks.catalog.quoting import identifier, literal


@pytest.mark.parametrize("text", ["it's", 'the "best"', "'; DROP TABLE x; --", "a\\b\n\u2028é", ""])
def test_a_quoted_text_is_read_back(text):
    name = text or "empty"  # SQL has no empty name
    result = duckdb.sql(f"SELECT {literal(text)} AS {identifier(name)}")
    assert result.columns == [name]
    assert result.fetchall() == [(text,)]
