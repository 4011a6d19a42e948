"""Find the source files."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from fineweb_mask.tasks.source.discovery import MOST_NAME_BYTES, SourceError, find_files, find_source
from tests.conftest import Bucket
from tests.tasks.source_files import discover, found, read, settings, write_lines, write_table


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_a_folder_is_searched_through_in_order_of_names(tmp_path: Path) -> None:
    touch(tmp_path, "z.parquet", "x/y.jsonl.gz", "x/deep/er.parquet", "a b;$(x)'.ndjson", "notes.txt", "c.JSONL")
    names = found(settings(tmp_path))
    assert names == {
        "a b;$(x)'.ndjson": "a-b---x--.ndjson",
        "c.JSONL": "c.JSONL",
        "x/deep/er.parquet": "x-deep-er",
        "x/y.jsonl.gz": "x-y.jsonl.gz",
        "z.parquet": "z",
    }
    assert list(names) == sorted(names)
    assert found(settings(tmp_path / "z.parquet")) == {"z.parquet": "z"}


def test_what_is_left_out_is_told_by_what_it_is(tmp_path: Path) -> None:
    def left_out(source: Any) -> dict[str, list[str]]:
        return {what: sorted(paths) for what, paths in find_source(source).left_out.items()}

    source, others = tmp_path / "source", tmp_path / "others"
    touch(source, "a.parquet", "b.CSV", "c.csv", "d/e.csv.gz", "f.tar.GZ", "g", "h.arrow", "i.jsonl.7z", "j.json.br")
    touch(source, "_SUCCESS", ".d.crc", "_tmp/e.parquet", ".git/f/g.jsonl")
    touch(others, "x.parquet")
    (source / "linked").symlink_to(others)
    (source / "loop").symlink_to(source)
    (source / "file.parquet").symlink_to(others / "x.parquet")
    expected = {
        ".csv": ["b.CSV", "c.csv"],
        ".csv.gz": ["d/e.csv.gz"],
        ".tar.gz": ["f.tar.GZ"],
        "without an ending": ["g", "linked", "loop"],
        ".arrow": ["h.arrow"],
        ".7z": ["i.jsonl.7z"],
        ".br": ["j.json.br"],
        "hidden": [".d.crc", ".git/f/g.jsonl", "_SUCCESS", "_tmp/e.parquet"],
    }
    assert left_out(settings(source)) == expected
    assert set(found(settings(source))) == {"a.parquet", "file.parquet"}
    assert left_out(settings(source, format="jsonl")) == {"hidden": expected["hidden"]}
    assert len(found(settings(source, format="jsonl"))) == 12
    assert left_out(settings(source / "*")).keys() >= {".csv", "hidden"}


def test_a_folder_that_cannot_be_opened_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.parquet", "closed/b.parquet", "open/c.parquet")
    access = os.access  # root may open all
    monkeypatch.setattr(os, "access", lambda path, *mode: not str(path).endswith("closed") and access(path, *mode))
    for path in (tmp_path, tmp_path / "**"):
        with pytest.raises(SourceError, match=r"'closed' cannot be opened: allow it, or name a folder"):
            discover(settings(path))


def test_what_is_left_out_of_other_files_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "a.parquet", "b.csv", "README.md")
    for _ in range(2):
        assert len(find_files(str(tmp_path), "ingest.against")) == 1
    [message] = caplog.messages
    assert message.startswith(f"ingest.against: of {tmp_path}, these are not read: 1 .csv (b.csv), 1 .md")


def keys(source: Any) -> dict[str, dict[str, Any]]:
    return {shard.relative: dict(shard.keys) for shard in discover(source)}


def test_keys_in_the_folders_of_a_path_are_columns(tmp_path: Path) -> None:
    touch(tmp_path, "language=en/year=2024/a.parquet", "Language=fr/year=__HIVE_DEFAULT_PARTITION__/b=c.jsonl.gz")
    touch(tmp_path, "dump=CC%2DMAIN%3D1/n=07/s=0.5/c.parquet", "x=/=y/d.parquet", "year=1999/year=2023/e.parquet")
    assert keys(settings(tmp_path)) == {
        "language=en/year=2024/a.parquet": {"language": "en", "year": "2024"},
        "Language=fr/year=__HIVE_DEFAULT_PARTITION__/b=c.jsonl.gz": {"language": "fr", "year": None},
        "dump=CC%2DMAIN%3D1/n=07/s=0.5/c.parquet": {"dump": "CC-MAIN=1", "n": "07", "s": "0.5"},
        "x=/=y/d.parquet": {"x": None},
        "year=1999/year=2023/e.parquet": {"year": "2023"},
    }
    below = {"a.parquet": {"language": "en", "year": "2024"}}
    for path in ("language=en/year=2024", "language=en/year=2024/*", "language=en/year=2024/a.parquet"):
        assert keys(settings(tmp_path / path)) == below


def test_a_glob_names_files_relative_to_its_fixed_part(tmp_path: Path) -> None:
    touch(tmp_path, "CC-1/a.parquet", "CC-2/a.parquet", "CC-2/b.parquet", "raw [2024]/a.parquet")
    assert found(settings(tmp_path / "CC-*" / "a.parquet")) == {
        "CC-1/a.parquet": "CC-1-a",
        "CC-2/a.parquet": "CC-2-a",
    }
    assert len(found(settings(tmp_path / "**" / "*.parquet"))) == 4
    assert found(settings(tmp_path / "raw [2024]")) == {"a.parquet": "a"}


def test_files_whose_names_would_be_one_or_too_long_are_told_apart(tmp_path: Path) -> None:
    touch(tmp_path, "a/b.parquet", "a-b.parquet", "c.parquet", "a b.parquet")
    touch(tmp_path, *(f"{stem}.parquet" for stem in ("x" * 240, "x" * 239 + "y", "\u00e9" * 120)))
    names = found(settings(tmp_path))
    assert (names["a-b.parquet"], names["c.parquet"]) == ("a-b", "c")  # as they would be alone
    assert all(re.fullmatch("a-b-[0-9a-f]{16}", names[path]) for path in ("a/b.parquet", "a b.parquet"))
    assert len(set(names.values())) == 7
    assert max(len(name.encode()) for name in names.values()) <= MOST_NAME_BYTES


@pytest.mark.parametrize("name", [b"caf\xe9", b"a::b"])
def test_a_name_that_no_url_may_have_is_left_out_and_told(tmp_path: Path, name: bytes) -> None:
    own = os.fsdecode(name + b".jsonl")
    touch(tmp_path, "caf%E9.parquet", own)
    source = find_source(settings(tmp_path))
    assert [shard.relative for shard in source.shards] == ["caf%E9.parquet"]
    assert source.left_out == {"names that are not UTF-8, or have '::'": [own]}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("missing", r"'.*/missing' does not exist \(looked for .*/missing\): check its spelling"),
        ("missing/*.parquet", r"no .* file below '.*/missing/\*\.parquet', it has nothing"),
        ("empty", "no .* file below '.*/empty', it has nothing"),
        ("", r"no .*\.jsonl/.* file below .*, it has 2 \.csv \(.\.csv\), 1 \.dat .*, 1 hidden .*: give other files"),
        ("*.csv", r"no .*\.jsonl/.* file below .*, it has 2 \.csv \(.\.csv\): give other files"),
        ("pages.dat", r"no .* it has 1 \.dat .*: give other files, or set source\.format to parquet, jsonl or warc"),
    ],
)
def test_where_no_file_can_be_read_those_that_are_there_are_told(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "a.csv", "b.csv", "_SUCCESS")
    write_lines(tmp_path / "pages.dat", ['{"text": "one"}'])
    with pytest.raises(SourceError, match=f"^source\\.path: {told}"):
        discover(settings(tmp_path / name))
    assert read(settings(tmp_path / "pages.dat", format="jsonl"))[0]["text"].to_pylist() == ["one"]


def test_a_changed_file_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", text=["one"])
    before = discover(settings(path))[0].fingerprint
    path.touch()
    assert discover(settings(path))[0].fingerprint != before


def test_a_path_missing_in_a_bucket_is_an_error(bucket: Bucket) -> None:
    bucket.write("corpus/dump=a%20b/a.parquet", b"x")
    assert keys(settings(f"{bucket.url}/corpus")) == {"dump=a%20b/a.parquet": {"dump": "a b"}}
    for path in ("none", "corpus/none.parquet", "corpus/none*.parquet"):
        with pytest.raises(SourceError, match=r"does not exist|no .* file below"):
            discover(settings(f"{bucket.url}/{path}"))
