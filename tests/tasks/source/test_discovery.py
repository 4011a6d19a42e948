"""Find the source files."""

from pathlib import Path

import pytest

from fineweb_mask.tasks.source.discovery import SourceError, discover
from tests.conftest import Bucket
from tests.tasks.source_files import found, read, settings, write_lines, write_table


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_one_file_is_one_shard(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b.parquet")
    assert found(settings(tmp_path / "a.parquet")) == {"a.parquet": "a"}


def test_a_folder_is_searched_through_in_order_of_names(tmp_path: Path) -> None:
    touch(tmp_path, "z.parquet", "x/y.jsonl.gz", "x/deep/er.parquet", "a.ndjson", "notes.txt", "README.md", "c.JSONL")
    names = found(settings(tmp_path))
    assert names == {
        "a.ndjson": "a.ndjson",
        "c.JSONL": "c.JSONL",
        "x/deep/er.parquet": "x-deep-er",
        "x/y.jsonl.gz": "x-y.jsonl.gz",
        "z.parquet": "z",
    }
    assert list(names.values()) == sorted(names.values())


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path / ".cache", "a.parquet", "_SUCCESS", "_tmp.parquet", ".b.parquet", ".git/c.parquet", "_x/d.parquet")
    assert found(settings(tmp_path / ".cache")) == {"a.parquet": "a"}


def test_a_glob_names_files_relative_to_its_fixed_part(tmp_path: Path) -> None:
    touch(tmp_path, "CC-1/a.parquet", "CC-2/a.parquet", "CC-2/b.parquet", "other/a.parquet")
    assert found(settings(tmp_path / "CC-*" / "a.parquet")) == {
        "CC-1/a.parquet": "CC-1-a",
        "CC-2/a.parquet": "CC-2-a",
    }
    assert len(found(settings(tmp_path / "**" / "*.parquet"))) == 4


def test_a_folder_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    touch(tmp_path / "raw [2024]", "a.parquet")
    assert found(settings(tmp_path / "raw [2024]")) == {"a.parquet": "a"}


def test_hostile_file_names_make_safe_shard_names(tmp_path: Path) -> None:
    touch(tmp_path, "a b;$(x)'.parquet")
    assert found(settings(tmp_path)) == {"a b;$(x)'.parquet": "a-b---x--"}


def test_two_files_of_one_shard_name_are_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "a/b.parquet", "a-b.parquet", "c.parquet")
    with pytest.raises(SourceError, match=r"rename one: (a/b\.parquet, a-b\.parquet|a-b\.parquet, a/b\.parquet)$"):
        discover(settings(tmp_path))


@pytest.mark.parametrize("name", ["missing", "missing/*.parquet", "empty", "text"])
def test_no_file_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "text/a.txt")
    with pytest.raises(SourceError, match=r"^source\.path: ") as caught:
        discover(settings(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)


def test_an_unknown_format_is_an_error_unless_source_format_is_set(tmp_path: Path) -> None:
    write_lines(tmp_path / "pages.dat", ['{"text": "one"}'])
    with pytest.raises(SourceError, match=r"set source\.format to parquet or jsonl"):
        discover(settings(tmp_path / "pages.dat"))
    table, _ = read(settings(tmp_path / "pages.dat", format="jsonl"))
    assert table["text"].to_pylist() == ["one"]


def test_a_changed_file_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", text=["one"])
    by_time, by_content = settings(path), settings(path, fingerprint="content")
    before = [discover(source)[0].fingerprint for source in (by_time, by_content)]
    path.touch()
    after = [discover(source)[0].fingerprint for source in (by_time, by_content)]
    assert after[0] != before[0]
    assert after[1] == before[1]
    write_table(path, text=["two"])
    assert discover(by_content)[0].fingerprint != before[1]


@pytest.mark.parametrize("path", ["none", "corpus/none.parquet", "corpus/none*.parquet"])
def test_a_path_missing_in_a_bucket_is_an_error(bucket: Bucket, path: str) -> None:
    for name in ("a.parquet", "b.jsonl.gz"):
        bucket.write(f"corpus/{name}", b"x")
    with pytest.raises(SourceError, match=r"does not exist|no .* file below"):
        discover(settings(f"{bucket.url}/{path}"))
