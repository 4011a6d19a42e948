"""Geometry: the report's measures are those of the vectors of the sample, its clusters have names."""

from importlib.util import find_spec

import numpy as np
import pytest

from fineweb_mask.models.analysis.vectors import effective_rank, mean_cosine, spectrum, unit_rows
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import ReportSettings
from fineweb_mask.tasks.reporting.geometry import check_map, measure
from fineweb_mask.tasks.reporting.samples import DocumentRef, vectors_at
from fineweb_mask.tasks.reporting.sections.diversity import diversity


@pytest.fixture(scope="module")
def measured(built):
    found = measure(built.workspace, built.report_job.shards, ReportSettings())
    assert found is not None
    return found


def test_the_geometry_is_that_of_the_vectors(built, measured):
    workspace, shards = built.workspace, built.report_job.shards
    masks = [built.read(shard.masks).to_pylist() for shard in shards]
    documents = [
        DocumentRef(shard, row) for shard, rows in enumerate(masks) for row, mask in enumerate(rows) if mask["block"]
    ]
    assert measured.eligible.documents == documents
    kept = [document for document in documents if masks[document.shard][document.row]["selected"]]
    for name, where in (("eligible", documents), ("selected", kept)):
        unit = unit_rows(vectors_at(workspace, shards, where))
        found = measured.geometry[name]
        assert found.documents == len(where)
        assert found.effective_rank == pytest.approx(effective_rank(spectrum(unit)))
        assert found.mean_cosine == pytest.approx(mean_cosine(unit))
        cosines = unit @ unit.T - 2 * np.eye(len(unit), dtype=np.float32)
        np.testing.assert_allclose(found.nearest, cosines.max(axis=1), atol=1e-5)
    assert measured.geometry["random"].documents == len(kept)
    assert measured.map.before.shape == (len(documents), 2)
    assert measured.map.after.shape == (len(kept), 2)


def test_the_nearest_selected_document_is_another_one(built, measured):
    workspace, shards = built.workspace, built.report_job.shards
    selected = measured.selected.documents
    cosines = measured.unit @ measured.unit.T - 2 * np.eye(len(selected), dtype=np.float32)
    np.testing.assert_allclose(measured.nearest_selected(measured.unit, selected), cosines.max(axis=1), atol=1e-5)
    other = [document for document in measured.eligible.documents if document not in selected]
    unit = unit_rows(vectors_at(workspace, shards, other))
    np.testing.assert_allclose(measured.nearest_selected(unit, other), (unit @ measured.unit.T).max(axis=1), atol=1e-5)


def test_the_same_workspace_gives_the_same_numbers(built):
    settings = ReportSettings(sample=9)
    first, second = (measure(built.workspace, built.report_job.shards, settings) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.eligible == second.eligible
    assert first.clusters == second.clusters
    np.testing.assert_array_equal(first.map.before, second.map.before)
    assert first.geometry["random"].effective_rank == second.geometry["random"].effective_rank


def test_clusters_are_named_and_hold_everybody(built, measured):
    assert sum(cluster.before for cluster in measured.clusters) == built.counts.documents_eligible
    assert sum(cluster.after for cluster in measured.clusters) == built.counts.selected
    assert len({cluster.words for cluster in measured.clusters}) == len(measured.clusters) > 1
    assert all(len(cluster.words.split(", ")) == 3 for cluster in measured.clusters)


def test_a_map_by_t_sne_keeps_a_document_near_itself(built):
    measured = measure(built.workspace, built.report_job.shards, ReportSettings(map="tsne"))
    assert measured is not None
    assert measured.map.labels[0] == "t-SNE, first axis"
    before, after = measured.map.before, measured.map.after
    to_itself = np.array([np.linalg.norm(before - place, axis=1).min() for place in after])  # the selected are eligible
    assert np.median(to_itself) < 0.1 * before.std()


@pytest.mark.skipif(find_spec("umap") is not None, reason="umap-learn is installed")
def test_without_umap_a_map_by_it_is_refused_with_what_to_do(built):
    settings = ReportSettings(map="umap")
    said = r"report\.map: umap needs umap-learn: run `pip install umap-learn`, or"
    with pytest.raises(SettingsError, match=said):
        check_map(settings)
    with pytest.raises(SettingsError, match=said):
        measure(built.workspace, built.report_job.shards, settings)
    check_map(ReportSettings(map="tsne"))


def test_principal_components_tell_how_much_they_show(measured):
    assert 0 < measured.map.explained < 1
    told = diversity(measured._replace(map=measured.map._replace(explained=0.056)))
    assert [figure.name for figure in told.figures] == ["nearest-neighbour"]
    assert told.text[1].startswith("Two principal components hold 5.6% of the vectors' variance, too little for a map")
    drawn = diversity(measured._replace(map=measured.map._replace(explained=0.3)))
    assert [figure.name for figure in drawn.figures] == ["map", "nearest-neighbour"]
    assert len(drawn.text) == 1
