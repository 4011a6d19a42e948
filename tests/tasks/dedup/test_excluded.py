"""Which documents lists of opt-outs name, and what is refused."""

import pyarrow as pa
import pytest

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.dedup.excluded import find_lists, named_in, names_of

DOCUMENTS = pa.record_batch(
    {
        "url": ["HTTPS://www.Example.org/Page/#top", "http://blog.shop.net:80/x", None, "http://notshop.net/?a=b", ""],
        "id": ["a", "b", "c", "d", "e"],
        "content_hash": pa.array([content_hash(text) for text in "vwxyz"], pa.binary(16)),
    }
)


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        ("example.org/Page", "a"),
        ("http://EXAMPLE.org/Page#x\r\nhttps://example.org/page", "a"),
        ("*.shop.net\n\n  c  ", "bc"),
        ("*.NET", "bd"),
        ("notshop.net?a=b\nnotshop.net/?a=b", "d"),
        (content_hash("Z ").hex(), "e"),
        ("*.example.org.net\nshop.net", ""),
    ],
)
def test_documents_are_named_by_url_domain_id_or_hash(tmp_path, lines, rows):
    path = tmp_path / "list.txt"
    path.write_text(lines)
    [found] = find_lists([str(path)])
    named = named_in(DOCUMENTS, names_of(*found)).to_pylist()
    assert [name for name, is_named in zip("abcde", named, strict=True) if is_named] == list(rows)


def test_a_list_is_known_by_what_it_names_and_one_that_is_missing_empty_or_changed_is_an_error(tmp_path):
    path = tmp_path / "list.txt"
    with pytest.raises(SettingsError, match=r"ingest\.exclude: .*list\.txt cannot be read"):
        find_lists([str(path)])
    path.write_text(" \n")
    with pytest.raises(SettingsError, match=r"list\.txt names nothing: write a URL"):
        find_lists([str(path)])
    found = []
    for lines in ("a\nb", "b\n\na\n", "c"):
        path.write_text(lines)
        found += find_lists([str(path)])
    assert len(dict(found[:2])) == len(set(found[:2])) == 1
    with pytest.raises(SettingsError, match=r"list\.txt changed after the run started: run again"):
        names_of(*found[0])
