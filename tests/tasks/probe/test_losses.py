"""The file of losses: those of the trainings, with how well each document's predict the models' ability."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.probe.losses import predictive_strength
from fineweb_mask.models.probe.settings import POOL
from fineweb_mask.models.settings.quality import LabelSettings
from fineweb_mask.tasks.probe.held_out import HeldOut
from fineweb_mask.tasks.probe.losses import LOSSES, Losses
from fineweb_mask.tasks.probe.page import write_probe_page
from fineweb_mask.tasks.probe.training import read_bits
from fineweb_mask.tasks.source.labels import read_labels
from tests.tasks.probe.test_page import page_job


@pytest.fixture(scope="module")
def path(probed: Any) -> Path:
    job = page_job(probed)
    write_probe_page(job)
    return job.folder / LOSSES


def test_it_holds_the_losses_of_every_model_on_every_document(probed: Any, path: Path) -> None:
    table = pq.read_table(path)
    documents = HeldOut.read(probed.built.workspace, probed.held_out).documents
    assert table["text"].to_pylist() == documents["text"].to_pylist()
    assert table["set"].to_pylist() == documents["set"].to_pylist()
    for arm in ("best", "random"):
        for seed, job in enumerate(probed.train[arm]):
            bits, sizes = read_bits(job.manifest_path)
            assert table["bytes"].to_pylist() == sizes.tolist()
            np.testing.assert_allclose(table[f"{arm} seed {seed}"].to_numpy(), bits / np.maximum(sizes, 1), rtol=1e-6)


def test_models_are_as_able_as_they_are_on_other_sets_than_the_corpus(path: Path) -> None:
    table = pq.read_table(path)
    sets = np.array(table["set"].to_pylist())
    names = [f"{arm} seed {seed}" for arm in ("best", "random") for seed in (0, 1)]
    losses, sizes = np.stack([table[name].to_numpy() for name in names]), table["bytes"].to_numpy()
    theirs = sets == "theirs"
    ability = -(losses[:, theirs] * sizes[theirs]).sum(1) / sizes[theirs].sum()
    of_pool = (sets == POOL) & (sizes > 0)
    found = np.array(table["predictive_strength"].to_pylist(), dtype=float)
    np.testing.assert_allclose(found[of_pool], predictive_strength(losses[:, of_pool], ability))
    assert np.isnan(found[theirs]).all()


def test_without_such_a_set_no_strength_is_known() -> None:
    of_corpus = Losses(
        bits={"a": np.array([[8.0, 16.0]]), "b": np.array([[4.0, 20.0]])},
        sizes=np.array([4, 8]),
        sets=np.array([POOL, POOL], dtype=object),
        groups=np.array([None, None], dtype=object),
        clusters=np.arange(2),
        texts=np.array(["x", "y"], dtype=object),
    )
    assert np.isnan(of_corpus.predictive_strengths()).all()
    with_target = of_corpus._replace(sets=np.array([POOL, "books"], dtype=object))
    assert with_target.predictive_strengths().tolist()[0] == 0.0  # `b` is better here, and worse there


def test_a_classifier_can_learn_it(path: Path) -> None:
    known = [value for value in pq.read_table(path)["predictive_strength"].to_pylist() if value is not None]
    middle = (min(known) + max(known)) / 2
    labelled = read_labels(LabelSettings(path=str(path), score_column="predictive_strength", threshold=middle))
    assert labelled.positive.tolist() == [value >= middle for value in known]
