"""The tiny workspace as the ledger reads it."""

import shutil

import pytest

from fineweb_mask.tasks.ledger.decisions import Corpus
from tests.tasks.conftest import Built


@pytest.fixture(scope="session")
def ledger(built, tmp_path_factory):
    """A copy of what was made of the tiny corpus, in whose cache vectors are kept."""
    target = shutil.copytree(built.workspace.root, tmp_path_factory.mktemp("own") / "workspace")
    own = Built(built.recipe.model_copy(update={"workspace": str(target)}))
    return Corpus(own.workspace, own.recipe, own.report_job.shards)
