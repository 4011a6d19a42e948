from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from fineweb_mask.tasks.dataset.verify import Dataset, find_dataset, read_provenance
from fineweb_mask.tasks.workspace.manifest import Manifest
from tests.tasks.conftest import Built, sentence


def save_tokenizer(path: Path, vocabulary: int = 400) -> Path:
    """Train a byte-level tokenizer on a few sentences and save it as a tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([sentence(seed) for seed in range(50)], trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="session")
def dataset(built: Built) -> tuple[Dataset, Manifest]:
    """The dataset of the tiny workspace, and its record."""
    found = find_dataset(str(built.workspace.root))
    return found, read_provenance(found)


@pytest.fixture(scope="session")
def texts(built: Built) -> list[str]:
    """The texts of the dataset, in the order of its files."""
    import pyarrow.parquet as pq

    files = sorted((built.workspace.root / "dataset" / "data").rglob("*.parquet"))
    return [text for file in files for text in pq.read_table(file, columns=["text"])["text"].to_pylist()]
