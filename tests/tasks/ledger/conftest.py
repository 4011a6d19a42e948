"""The tiny workspace as the ledger reads it."""

import pytest

from fineweb_mask.tasks.ledger.decisions import Corpus
from tests.tasks.conftest import Built


def corpus_of(built: Built) -> Corpus:
    masks = {file.name: file for file in built.masks}
    shards = [shard.model_copy(update={"masks": masks[shard.name]}) for shard in built.selection_shards]
    return Corpus(built.workspace, built.recipe, shards)


@pytest.fixture(scope="session")
def ledger(built: Built) -> Corpus:
    """What was made of the tiny corpus."""
    return corpus_of(built)
