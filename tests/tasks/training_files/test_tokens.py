import json
import struct
import sys
from itertools import chain

import numpy as np
import pytest
from tokenizers import Tokenizer as Loaded
from tokenizers import decoders

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError
from fineweb_mask.tasks.training_files import (
    Tokenizer,
    TokenizerError,
    WriterError,
    load_step,
    write_tokens,
)
from tests.tasks.conftest import sentence
from tests.tasks.training_files.conftest import save_tokenizer

pytest.importorskip("datatrove.pipeline.tokens")

TEXTS = [sentence(seed) for seed in range(40)]


def settings(tokenizer, **changes):
    return ExportSettings(**{"format": "megatron", "tokenizer": str(tokenizer)} | changes)


def read_megatron(prefix):
    """Return the documents of a pair of files, as Megatron-LM's `IndexedDataset` reads them."""
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack("<QBQQ", index[9:34])
    assert (version, documents) == (1, sequences + 1)
    kind = {4: np.int32, 8: np.uint16}[code]
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + lengths.nbytes)
    ends = np.frombuffer(index, np.int64, documents, 34 + lengths.nbytes + pointers.nbytes)
    assert len(index) == 34 + lengths.nbytes + pointers.nbytes + ends.nbytes
    assert ends.tolist() == list(range(documents))
    tokens = prefix.with_suffix(".bin").read_bytes()
    assert len(tokens) == lengths.sum() * np.dtype(kind).itemsize
    return [
        np.frombuffer(tokens, kind, length, pointer).tolist() for length, pointer in zip(lengths, pointers, strict=True)
    ]


@pytest.fixture(params=[400, 70_000], ids=["two bytes", "four bytes"])
def tokenizer(request, tmp_path, tokenizer_file):
    """A tokenizer file, and the bytes of its tokens."""
    if request.param == 400:
        return tokenizer_file, 2
    content = json.loads(tokenizer_file.read_text())
    content["model"]["vocab"] |= {f"unused {number}": number for number in range(400, 70_000)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path / "tokenizer.json", 4


def expected(tokenizer_file):
    loaded = Loaded.from_file(str(tokenizer_file))
    end = loaded.token_to_id("<|endoftext|>")
    return [[*loaded.encode(text).ids, end] for text in TEXTS]


def write(folder, one, texts):
    documents = iter([{"text": text, "id": str(row)} for row, text in enumerate(texts)])
    write_tokens(documents, Tokenizer(one), one.format, folder, "00000")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove.pipeline.tokens.tokenizer", None)
    with pytest.raises(WriterError, match=r"need datatrove, received .*: pip install '\.\[filters\]'"):
        load_step("nanotron")


def test_megatron_files_hold_every_document(tokenizer, tmp_path):
    file, size = tokenizer
    write(tmp_path / "files", settings(file), TEXTS)
    assert Tokenizer(settings(file)).token_bytes == size
    assert read_megatron(tmp_path / "files" / "00000") == expected(file)


def test_nanotron_files_are_read_by_datatrove(tokenizer, tmp_path):
    from datatrove.utils.dataset import DatatroveFolderDataset

    file, size = tokenizer
    write(tmp_path / "files", settings(file, format="nanotron"), TEXTS)
    tokens = expected(file)
    ends = np.cumsum([len(document) for document in tokens])
    assert np.fromfile(tmp_path / "files" / "00000.ds.index", np.uint64).tolist() == ends.tolist()
    read = DatatroveFolderDataset(str(tmp_path / "files"), seq_len=31, token_size=size)
    assert len(read) == ends[-1] // 32
    whole = list(chain(*tokens))
    assert [token for row in read for token in row["input_ids"].tolist()] == whole[: len(read) * 32]
    assert (tmp_path / "files" / "00000.ds.metadata").read_text().startswith(f"tokenizer.json|{size}\n{ends[-1]}\n")


def test_the_token_at_the_end_is_the_tokenizers_own(tmp_path, tokenizer_file):
    assert Tokenizer(settings(tokenizer_file)).end_token == "<|endoftext|>"
    save_tokenizer(tmp_path / "model" / "tokenizer.json")
    for named in ("</s>", {"content": "</s>", "lstrip": False}):
        (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
        tokenizer = Tokenizer(settings(tmp_path / "model"))
        assert tokenizer.end_token == "</s>"
        assert tokenizer.loaded.encode("a").ids[-1] == 1
    assert Tokenizer(settings(tmp_path / "model", end_token="<|endoftext|>")).loaded.encode("a").ids[-1] == 0


HOSTILE = ["<|endoftext|>", "", "a<|endoftext|></s>\n\n</s>", "</s>", "  two  spaces ", "<|endoftext|>" * 9]


@pytest.mark.parametrize("kind", ["special", "added, but not special", "a word of the model"])
def test_a_document_ends_once_whatever_its_text_spells(kind, tokenizer_file, tmp_path):
    content = json.loads(tokenizer_file.read_text())
    added = [one | {"special": kind == "special"} for one in content["added_tokens"]]
    plain = Loaded.from_str(json.dumps(content | {"added_tokens": [] if kind == "a word of the model" else added}))
    plain.add_tokens(["  "])
    plain.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "files", settings(tmp_path), HOSTILE)
    [file] = (tmp_path / "files").glob("*.bin")
    tokens = np.fromfile(file, np.uint16).tolist()
    end, spaces = plain.token_to_id("<|endoftext|>"), plain.token_to_id("  ")
    assert (tokens.count(end), tokens.count(spaces)) == (len(HOSTILE), 2)
    ends = [place + 1 for place, token in enumerate(tokens) if token == end]
    documents = [tokens[start : stop - 1] for start, stop in zip([0, *ends], ends, strict=False)]
    plain.decoder = decoders.ByteLevel()
    assert [plain.decode(ids, skip_special_tokens=False) for ids in documents] == HOSTILE


def test_a_tokenizer_that_cannot_be_used_says_why(tmp_path, tokenizer_file):
    loaded = Loaded.from_file(str(tokenizer_file))
    loaded.decoder = decoders.ByteLevel()
    loaded.save(str(tmp_path / "whole.json"))
    (tmp_path / "tokenizer.json").write_text("{}")
    for one, error, message in (
        (settings(tmp_path / "none.json"), ModelNotFoundError, "does not exist"),
        (settings("folder/of/nothing"), SettingsError, r"give a tokenizer\.json"),
        (settings(tmp_path), TokenizerError, r"must be a tokenizer\.json"),
        (settings(tokenizer_file, end_token="<eos>"), TokenizerError, "set end_token"),
        (
            settings(tmp_path / "whole.json", end_token="\u010a"),  # a line feed
            TokenizerError,
            "finds '\u010a' in texts, too: set end_token to one of its special",
        ),
    ):
        with pytest.raises(error, match=message):
            _ = Tokenizer(one).loaded


def test_a_long_text_is_not_cut_and_nothing_is_padded(tokenizer_file, tmp_path):
    loaded = Loaded.from_file(str(tokenizer_file))
    loaded.enable_truncation(8)
    loaded.enable_padding(length=8)
    loaded.save(str(tmp_path / "tokenizer.json"))
    long, short = Tokenizer(settings(tmp_path)).loaded.encode_batch(["a b c d e f g h i j k l", "a"])
    assert len(long.ids) > 12
    assert len(short.ids) == 2
