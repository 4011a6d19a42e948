"""Compressed files are read by what they are, whatever their names say, and one that is cut off is set aside."""

import bz2
import gzip
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.source.opening import BrokenFileError
from fineweb_mask.tasks.source.warc import warc_records
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.source_files import read, settings
from tests.warc import Answer, page_of, warc_bytes

TEXTS = [f"text {number * number}" for number in range(300)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
SKIPPED = struct.pack("<II", 0x184D2A53, 5) + b"notes"


def windowed(content: bytes, exponent: int) -> bytes:
    """Return a frame of zstd whose window is 2 to this power: raw blocks, as `zstd --long` may write them."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, (exponent - 10) << 3])
    blocks = [content[place : place + 100_000] for place in range(0, len(content), 100_000)]
    for number, block in enumerate(blocks):
        frame += (len(block) << 3 | (number == len(blocks) - 1)).to_bytes(3, "little") + block
    return frame


zstd = zstandard.ZstdCompressor().compress
PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gZ": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".ZSt": zstd,
}


@pytest.mark.parametrize("ending", [*PACKED, ""])
def test_files_of_any_compression_are_read_whatever_their_names_say(tmp_path: Path, ending: str) -> None:
    for name in {f"A.JSON{ending}", "a.ndjson", "a.jsonl.gz", "a.jsonl.bz2"}:
        (tmp_path / name).write_bytes(PACKED.get(ending, bytes)(LINES))
        assert read(settings(tmp_path / name))[0]["text"].to_pylist() == TEXTS


@pytest.mark.parametrize("ending", PACKED)
def test_a_file_that_is_cut_off_is_set_aside_and_several_parts_are_one_file(tmp_path: Path, ending: str) -> None:
    path, whole = tmp_path / f"a.jsonl{ending}", PACKED[ending](LINES)
    for keep in (0.1, 0.99):
        path.write_bytes(whole[: int(len(whole) * keep)])
        with pytest.raises(BadShardError, match=r"^a\.jsonl\.\w+: "):
            read(settings(tmp_path))
    path.write_bytes(whole * 2)
    assert read(settings(tmp_path))[0]["text"].to_pylist() == TEXTS * 2


@pytest.mark.parametrize(
    ("content", "times"),
    [
        (SKIPPED * 2 + zstd(LINES) + SKIPPED, 1),
        (zstd(LINES) + SKIPPED, 1),
        *((windowed(LINES, exponent) * 2, 2) for exponent in (27, 31)),
    ],
    ids=["skipped before", "skipped after", "2^27", "2^31"],
)
def test_frames_of_zstd_that_hold_no_data_or_have_long_windows_are_read(tmp_path, content, times):
    (tmp_path / "a.jsonl").write_bytes(content)
    assert read(settings(tmp_path))[0]["text"].to_pylist() == TEXTS * times


def test_what_cannot_be_unpacked_says_what_to_do(tmp_path: Path) -> None:
    words = zstandard.train_dictionary(1_000, [text.encode() * 20 for text in TEXTS])
    contents = {
        "its window is above 2 GiB; compress it again with zstd --long=31": windowed(LINES, 32),
        "it needs a dictionary; compress it again without": zstandard.ZstdCompressor(dict_data=words).compress(LINES),
    }
    for reason, content in contents.items():
        (tmp_path / "a.jsonl").write_bytes(content)
        with pytest.raises(BadShardError, match=reason):
            read(settings(tmp_path))


@pytest.mark.parametrize("ending", [*PACKED, ""])
def test_crawls_of_any_compression_are_read(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("warcio")
    content = PACKED.get(ending, bytes)(warc_bytes([Answer(page_of("text"))] * 3, False))
    (tmp_path / f"a.warc{ending}").write_bytes(content)
    [shard] = discover(settings(tmp_path))
    assert (shard.format, len(list(warc_records(shard, 2**20)))) == ("warc", 3)
    if ending:
        (tmp_path / f"a.warc{ending}").write_bytes(content[:-20])
        with pytest.raises((BrokenFileError, OSError)):
            list(warc_records(shard, 2**20))
