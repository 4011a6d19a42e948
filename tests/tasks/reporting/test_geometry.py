"""Geometry: the report's measures are those of the vectors of the sample, its clusters have names."""

import numpy as np
import pytest

from fineweb_mask.models.analysis.vectors import effective_number, mean_cosine, spectrum, unit_rows
from fineweb_mask.tasks.reporting import geometry
from fineweb_mask.tasks.reporting.geometry import measure
from fineweb_mask.tasks.reporting.samples import eligible_documents, vectors_at


@pytest.fixture(scope="module")
def measured(built):
    found = measure(built.workspace, built.report_job.shards)
    assert found is not None
    return found


def test_the_geometry_is_that_of_the_vectors(built, measured):
    workspace, shards = built.workspace, built.report_job.shards
    everyone, is_kept = eligible_documents(workspace, shards, range(len(shards)))
    assert (measured.eligible.places == everyone).all()
    for name, where in (("eligible", everyone), ("selected", everyone[is_kept])):
        unit = unit_rows(vectors_at(workspace, shards, where))
        found = measured.geometry[name]
        assert found.documents == len(where)
        assert found.effective_rank == pytest.approx(effective_number(spectrum(unit)))
        assert found.mean_cosine == pytest.approx(mean_cosine(unit))
        cosines = unit @ unit.T - 2 * np.eye(len(unit), dtype=np.float32)
        assert found.nearest == pytest.approx(cosines.max(axis=1).mean(), abs=1e-5)
    assert measured.geometry["random"].documents == is_kept.sum()


def test_the_same_workspace_gives_the_same_numbers(built, monkeypatch):
    monkeypatch.setattr(geometry, "SAMPLE", 9)
    first, second = (measure(built.workspace, built.report_job.shards) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.eligible.places == second.eligible.places).all()
    assert first.clusters == second.clusters
    assert first.geometry["random"].effective_rank == second.geometry["random"].effective_rank


def test_clusters_are_named_and_hold_everybody(built, measured):
    assert sum(cluster.before for cluster in measured.clusters) == built.counts.documents_eligible
    assert sum(cluster.after for cluster in measured.clusters) == built.counts.selected
    assert len({cluster.words for cluster in measured.clusters}) == len(measured.clusters) > 1
    assert all(len(cluster.words.split(", ")) == 3 for cluster in measured.clusters)
