"""The tiny workspace as the ledger reads it."""

import shutil

import pytest

from fineweb_mask.tasks.ledger.decisions import Corpus
from tests.tasks.conftest import Built


@pytest.fixture(scope="session")
def own(built, tmp_path_factory):
    """A copy of the tiny workspace, in whose cache vectors are kept."""
    target = shutil.copytree(built.workspace.root, tmp_path_factory.mktemp("own") / "workspace")
    return Built(built.recipe.model_copy(update={"workspace": str(target)}))


@pytest.fixture(scope="session")
def ledger(own):
    """What was made of the tiny corpus."""
    masks = {file.name: file for file in own.masks}
    shards = [shard.model_copy(update={"masks": masks[shard.name]}) for shard in own.selection_shards]
    return Corpus(own.workspace, own.recipe, shards)
