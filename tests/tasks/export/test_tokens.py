import json
import sys
from itertools import chain

import numpy as np
import pytest
from tokenizers import Tokenizer as Loaded
from tokenizers import decoders

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.export import Tokenizer, TokenizerError, WriterError, load_step, write_tokens
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError
from tests.tasks.conftest import sentence
from tests.tasks.export.conftest import read_megatron
from tests.tasks.hub_server import HubServer, ask_only

pytest.importorskip("datatrove.pipeline.tokens")

TEXTS = [sentence(seed) for seed in range(40)]


@pytest.fixture(params=[(400, 2), (65_536, 2), (65_537, 4)], ids=["small", "two bytes", "four bytes"])
def tokenizer(request, tmp_path, tokenizer_file):
    """A tokenizer file, and the bytes of its tokens."""
    words, size = request.param
    content = json.loads(tokenizer_file.read_text())
    content["model"]["vocab"] |= {f"unused {number}": number for number in range(400, words)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path / "tokenizer.json", size


def expected(tokenizer_file):
    loaded = Loaded.from_file(str(tokenizer_file))
    end = loaded.token_to_id("<|endoftext|>")
    return [[*loaded.encode(text).ids, end] for text in TEXTS]


def write(folder, file, texts, kind="megatron"):
    documents = iter([{"text": text, "id": str(row)} for row, text in enumerate(texts)])
    tokenizer = Tokenizer(str(file))
    write_tokens(documents, tokenizer, kind, folder, "00000")
    return tokenizer


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove.pipeline.tokens.tokenizer", None)
    with pytest.raises(WriterError, match=r"need datatrove, received .*: pip install '\.\[filters\]'"):
        load_step("nanotron")


def test_megatron_files_hold_every_document(tokenizer, tmp_path):
    file, size = tokenizer
    assert write(tmp_path / "files", file, TEXTS).token_bytes == size
    assert read_megatron(tmp_path / "files" / "00000") == expected(file)


def test_nanotron_files_are_read_by_datatrove(tokenizer, tmp_path):
    from datatrove.utils.dataset import DatatroveFolderDataset

    file, size = tokenizer
    write(tmp_path / "files", file, TEXTS, "nanotron")
    tokens = expected(file)
    ends = np.cumsum([len(document) for document in tokens])
    assert np.fromfile(tmp_path / "files" / "00000.ds.index", np.uint64).tolist() == ends.tolist()
    read = DatatroveFolderDataset(str(tmp_path / "files"), seq_len=31, token_size=size)
    assert len(read) == ends[-1] // 32
    whole = list(chain(*tokens))
    assert [token for row in read for token in row["input_ids"].tolist()] == whole[: len(read) * 32]
    assert (tmp_path / "files" / "00000.ds.metadata").read_text().startswith(f"tokenizer.json|{size}\n{ends[-1]}\n")


def with_end(folder, file, named):
    """Return a tokenizer whose configuration names the token at the end."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(file.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    return Tokenizer(str(folder))


def test_the_token_at_the_end_is_the_tokenizers_own(tmp_path, tokenizer_file):
    assert Tokenizer(str(tokenizer_file)).end_token == "<|endoftext|>"
    for named, token, number in (("</s>", "</s>", 1), ({"content": "</s>"}, "</s>", 1), (None, "<|endoftext|>", 0)):
        tokenizer = with_end(tmp_path, tokenizer_file, named)
        assert tokenizer.end_token == token
        assert tokenizer.loaded.encode("a").ids[-1] == number


def test_the_token_of_a_tokenizer_on_the_hub_is_its_own(tmp_path, tokenizer_file, monkeypatch):
    (tmp_path / "hub").mkdir()
    with HubServer(tmp_path / "hub") as hub:
        ask_only(hub.url, monkeypatch, tmp_path)
        for owner, config in (("me", b'{"eos_token": "</s>"}'), ("openai-community", b"{}")):
            hub.write(f"{owner}/small/main", "tokenizer.json", tokenizer_file.read_bytes())
            hub.write(f"{owner}/small/main", "tokenizer_config.json", config)
        for name in ("me/small", "hf://me/small", "hf://me/small/tokenizer.json"):
            assert Tokenizer(name).end_token == "</s>"
        assert Tokenizer("small").end_token == "<|endoftext|>"


HOSTILE = ["<|endoftext|>", "", "a<|endoftext|></s>\n\n</s>", "</s>", "  two  spaces ", "<|endoftext|>" * 9]


@pytest.mark.parametrize("kind", ["special", "added, but not special", "a word of the model"])
def test_a_document_ends_once_whatever_its_text_spells(kind, tokenizer_file, tmp_path):
    content = json.loads(tokenizer_file.read_text())
    added = [one | {"special": kind == "special"} for one in content["added_tokens"]]
    plain = Loaded.from_str(json.dumps(content | {"added_tokens": [] if kind == "a word of the model" else added}))
    plain.add_tokens(["  "])
    plain.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "files", tmp_path, HOSTILE)
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
    for name, error, message in (
        (tmp_path / "none.json", ModelNotFoundError, "does not exist"),
        ("folder/of/nothing", SettingsError, r"give a tokenizer\.json"),
        (tmp_path, TokenizerError, r"must be a tokenizer\.json"),
    ):
        with pytest.raises(error, match=message):
            _ = Tokenizer(str(name)).loaded
    for file, named, message in (
        (tokenizer_file, "<eos>", "has no token '<eos>': write the one that ends a text as eos_token into the"),
        (
            tmp_path / "whole.json",
            "\u010a",
            "finds '\u010a' in texts, too: write one of its special tokens",
        ),
    ):  # the second is a line feed
        with pytest.raises(TokenizerError, match=message):
            _ = with_end(tmp_path / "model", file, named).loaded


def test_a_long_text_is_not_cut_and_nothing_is_padded(tokenizer_file, tmp_path):
    loaded = Loaded.from_file(str(tokenizer_file))
    loaded.enable_truncation(8)
    loaded.enable_padding(length=8)
    loaded.save(str(tmp_path / "tokenizer.json"))
    long, short = Tokenizer(str(tmp_path)).loaded.encode_batch(["a b c d e f g h i j k l", "a"])
    assert len(long.ids) > 12
    assert len(short.ids) == 2
