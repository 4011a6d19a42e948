"""A candidate half of which we have: what is found of it, and what the page says."""

import json

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.ledger.price import Rate
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.ledger import price as module
from fineweb_mask.tasks.ledger.candidate import Drawn
from fineweb_mask.tasks.ledger.price import CandidateJob, equal_to_ours, nearest_of_ours, price_candidate, sharing_words
from fineweb_mask.tasks.ledger.price_page import lines

OURS, COMMON, NEW = 400, 100, 140


@pytest.fixture(scope="module")
def both(recipe, pipeline, make_document, make_parquet, tmp_path_factory):
    """400 documents of ours, and a sample of 100 of them, 140 others, a copy of one of these, and one too short."""
    folder, found = tmp_path_factory.mktemp("priced"), []
    theirs = [*range(COMMON), *range(1_000, 1_000 + NEW), 1_000]
    for name, seeds in (("ours", range(OURS)), ("theirs", theirs)):
        rows = [make_document(seed) for seed in seeds]
        if name == "theirs":
            rows.append(make_document(9_999, text="short"))
        make_parquet(folder / name / "a.parquet", rows)
        changes = {
            "workspace": str(folder / f"{name}-workspace"),
            "source": SourceSettings(path=str(folder / name)),
            "ingest": recipe.ingest.model_copy(update={"keep_dropped": True}),
        }
        found.append(pipeline(recipe.model_copy(update=changes)))
    return found


def job_of(both, **changes):
    ours, theirs = both
    fields = {
        "root": ours.workspace.address,
        "sample": str(theirs.workspace.root),
        "theirs": theirs.selection_shards,
        "drawn": Drawn(2_420, 242, ["a.parquet"], 1, []),
        "ours": ours.selection_shards,
        "signatures": [],
        "settings": ours.recipe.selection.model_copy(update={"metrics": {"pairwise": 1.0}}),
        "ingest": ours.recipe.ingest,
        "rates": [Rate(8_000, 4.0)],
    }
    return CandidateJob(**fields | changes)


@pytest.fixture(scope="module")
def details(both):
    return price_candidate(job_of(both)).details


def test_what_we_have_is_found_and_what_is_a_copy_inside_does_not_count(details):
    found = details["estimates"]
    assert details["copies"] == 1
    assert found["equal"][0] == pytest.approx(COMMON / 241)
    assert found["dropped"][0] == pytest.approx(1 / 241)
    assert found["equal"][1] < COMMON / 241 < found["equal"][2]
    assert details["reasons"] == {"too_short": 1}
    assert any("copies of others" in text for text in details["remarks"])


def test_of_the_rest_some_is_selected_and_j_gains(details):
    value, low, high = details["estimates"]["kept"]
    assert 0 <= low <= value <= high <= NEW / 241
    assert value > 0.02
    assert details["estimates"]["gain"][2] > 0
    assert sum(one["documents"] for one in details["clusters"]) == NEW


def test_what_is_drawn_whole_is_known(both):
    found = price_candidate(job_of(both, drawn=Drawn(242, 242, ["a.parquet"], 1, []))).details["estimates"]
    assert found["equal"] == pytest.approx([COMMON / 241] * 3)
    assert (
        found["kept"][0] == found["kept"][1] == found["kept"][2] == pytest.approx(round(found["kept"][0] * 241) / 241)
    )
    assert 0.05 < found["kept"][0] * 241 / NEW < 0.5


def test_the_whole_costs_what_its_tokens_cost_us(both, details):
    value, low, high = details["estimates"]["seconds"]
    tokens = both[1].documents[0].details["tokens"]
    assert value == pytest.approx(
        10 * 4 / 8_000 * tokens, rel=0.55
    )  # those that are equal to ours are not embedded twice
    assert low < value < high


def test_the_page_tells_every_estimate_with_its_interval(both):
    details, folder = price_candidate(job_of(both)).details, both[0].workspace.root / "price"
    text = (folder / "index.html").read_text(encoding="utf-8")
    told = lines(details)
    assert {"selected of it", "equal to one of ours", "new clusters", "J"} <= {line.name for line in told}
    assert all(line.interval in text for line in told)
    assert json.loads((folder / "metrics.json").read_text())["estimates"] == details["estimates"]
    assert price_candidate(job_of(both)).cached


def test_where_nothing_new_is_left_this_is_said(both):
    ours, _ = both
    found = price_candidate(job_of(both, sample=ours.workspace.address, theirs=ours.selection_shards)).details
    assert found["estimates"]["equal"][0] == 1
    assert found["estimates"]["kept"][0] == 0
    assert found["estimates"]["gain"] is None
    assert any("too few to say" in text for text in found["remarks"])


def test_a_workspace_of_few_documents_says_nothing(both, monkeypatch):
    monkeypatch.setattr(module, "FEWEST", 1_000)
    with pytest.raises(DataError, match="the workspace has 400 documents to select from, at least 1000 are needed"):
        price_candidate(job_of(both, rates=[]))


def test_twins_are_found_by_text_by_vectors_and_by_words(both, make_document):
    pytest.importorskip("rensa")
    from fineweb_mask.models.dedup.minhash import Sketch
    from fineweb_mask.models.documents import content_hash
    from fineweb_mask.tasks.dedup.sort import SortJob, sort_rows

    ours, _ = both
    own, other = make_document(3)["text"], make_document(5_000)["text"]
    hashes = pa.array([content_hash(own.upper()), content_hash(other)], pa.binary(16))
    assert equal_to_ours(ours.workspace, ours.selection_shards, hashes).tolist() == [True, False]
    vectors = ours.read(ours.embeddings[0])["embedding"].to_pylist()[:2]
    unit = np.array(vectors, dtype=np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    assert (nearest_of_ours(ours.workspace, ours.selection_shards, unit) > 0.999).all()
    sketch = Sketch.for_threshold(0.5)
    job = SortJob(root=ours.workspace.address, by="signatures", file=ours.documents[0], sketch=sketch)
    texts = pa.array([own.replace(".", " and so on."), other, "short"])
    found = sharing_words(ours.workspace, ours.selection_shards, [sort_rows(job)], texts, sketch, 0.5)
    assert found.tolist() == [True, False, False]
