"""What stands in a list is read line by line, in bounded memory, and what is none is said."""

import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.ledger.removal import digest_of, in_order
from fineweb_mask.tasks.ledger.search import asked_for, names_in, not_found


def written(folder, content, name="list.txt"):
    path = folder / name
    path.write_bytes(content)
    return path


def test_names_are_lines_without_blanks(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbfhttps://a.org/\r\n\n  b.org/x \nc.org")
    assert list(names_in(path, "url")) == ["https://a.org/", "b.org/x", "c.org"]
    assert (
        asked_for(path, "url").tolist()
        == in_order(digest_of("url", one) for one in ("a.org", "b.org/x", "c.org")).tolist()
    )
    assert not_found(path, "url", in_order([digest_of("url", "b.org/x/")]), 1) == (2, ["https://a.org/"])


def test_a_domain_may_have_a_star_before_it(tmp_path):
    assert list(names_in(written(tmp_path, b"*.Example.ORG\nb\xc3\xbccher.example\n"), "domain")) == [
        *("example.org", "bücher.example")
    ]


def test_texts_are_those_of_documents_or_one_whole_file(tmp_path):
    texts = ["one text\nof two lines", None, "another"]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    assert list(names_in(tmp_path / "a.parquet", "text")) == ["one text\nof two lines", "another"]
    assert list(names_in(written(tmp_path, b'{"text": "one"}\n{"text": "two"}\n', "a.jsonl"), "text")) == ["one", "two"]
    assert list(names_in(written(tmp_path, b"one\ntwo\n"), "text")) == ["one\ntwo\n"]


@pytest.mark.parametrize(
    ("kind", "content", "name", "reason"),
    [
        (
            "domain",
            b"a.org\norg\n",
            "list.txt",
            "--domains: line 2 of .*list.txt is 'org': it must be a domain such as",
        ),
        ("domain", b"a.org/x", "list.txt", "line 1"),
        ("url", b"\xff\xfea\x00", "list.txt", "--urls: .* is no text in UTF-8: give .* one url on each line"),
        ("id", b"\n \n", "list.txt", "--ids: .*list.txt is empty: give a file with one id on each line"),
        ("text", b"", "list.txt", "is empty"),
        ("text", b"PAR1", "list.parquet", "--texts: list.parquet"),
        ("text", b'{"body": "x"}\n', "list.jsonl", "no column 'text'"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path, kind, content, name, reason):
    with pytest.raises(SettingsError, match=reason):
        asked_for(written(tmp_path, content, name), kind)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for name in ("missing", "missing.parquet"):
        with pytest.raises(SettingsError, match=r"--texts: .*missing"):
            asked_for(tmp_path / name, "text")
    with pytest.raises(SettingsError, match=r"--urls: .* cannot be read: Is a directory"):
        asked_for(tmp_path, "url")


def test_a_million_urls_take_some_bytes_each(tmp_path):
    path = tmp_path / "urls.txt"
    with path.open("w") as lines:
        lines.writelines(f"https://host{number % 5000}.example/a/page/{number}\n" for number in range(1_000_000))
    tracemalloc.start()
    try:
        assert len(asked_for(path, "url")) == 1_000_000
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000_000
    assert not_found(path, "url", in_order([]), 3)[0] == 1_000_000
