"""The tiny workspace as the ledger reads it."""

import pytest

from fineweb_mask.tasks.ledger.decisions import Corpus


@pytest.fixture(scope="session")
def ledger(built):
    return Corpus(built.workspace, built.recipe, built.report_job.shards)
