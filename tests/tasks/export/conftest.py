import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.verify import Dataset, find_dataset
from fineweb_mask.tasks.export import ExportJob
from tests.tasks.conftest import Built, sentence


def save_tokenizer(path: Path) -> Path:
    """Train a byte-level tokenizer on a few sentences and save it as a tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([sentence(seed) for seed in range(50)], trainer)
    tokenizer.save(str(path))
    return path


def read_megatron(prefix: Path) -> list[list[int]]:
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


def job_of(dataset: Dataset, folder: Path, kind: str = "parquet", **settings: Any) -> ExportJob:
    """Return the job that exports a dataset to a folder."""
    content, one = dataset.manifest.content, ExportSettings(format=kind, **settings)
    return ExportJob(root=str(folder.parent), dataset=content, place=dataset.url, settings=one, elsewhere=str(folder))


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="session")
def dataset(built: Built) -> Dataset:
    """The dataset of the tiny workspace."""
    return find_dataset(str(built.workspace.root))


@pytest.fixture(scope="session")
def texts(built: Built) -> list[str]:
    """The texts of the dataset, in the order of its files."""
    files = sorted((built.workspace.root / "dataset" / "data").rglob("*.parquet"))
    return [text for file in files for text in pq.read_table(file, columns=["text"])["text"].to_pylist()]
