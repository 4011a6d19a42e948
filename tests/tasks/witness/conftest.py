"""A corpus of three topics of which half is selected."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.settings import SourceSettings

TOPICS = ("sea", "kitchen", "space")
DOCUMENTS = 800


def words(seed: int, count: int = 60) -> str:
    """Return a text whose words are of its topic and more often small numbers than large ones."""
    random = np.random.default_rng(seed)
    return f"Page {seed}: " + " ".join(f"{TOPICS[seed % 3]}{number}" for number in random.zipf(1.3, count) % 5_000)


@pytest.fixture(scope="package")
def selected(recipe: Any, pipeline: Any, make_document: Any, make_parquet: Any, tmp_path_factory: Any) -> Any:
    """Two shards of three topics, of which a half is selected; one in ten copies another, but for a word."""
    folder = tmp_path_factory.mktemp("witness")
    rows = [
        make_document(
            seed,
            text=words(seed),
            token_count=120,
            topic=TOPICS[seed % 3],
            url=f"https://host{seed % 7 and seed}.org/{seed}",
        )
        for seed in range(DOCUMENTS)
    ]
    for row in range(1, DOCUMENTS, 10):
        rows[row]["text"] = f"{rows[row - 1]['text']} again"
    for name, part in (("a", rows[:500]), ("b", rows[500:])):
        make_parquet(folder / "source" / f"{name}.parquet", part, (pa.field("topic", pa.string()),))
    selection = recipe.selection.model_copy(update={"select_ratio": 0.5, "block_size": 1_000})
    changes = {"workspace": str(folder / "workspace"), "source": SourceSettings(path=str(folder / "source"))}
    return pipeline(recipe.model_copy(update=changes | {"selection": selection}))


@pytest.fixture(scope="package")
def shards(selected: Any) -> Any:
    return selected.report_job.shards
