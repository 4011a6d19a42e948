"""What is said of texts that are not in the corpus agrees with ingest and with the selection of those that are."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.models.documents import conform
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.tasks.dedup.sort import SortJob, sort_rows
from fineweb_mask.tasks.ledger.decisions import DROPPED, KEPT, NOT_KNOWN, NOT_SELECTED, SELECTED
from fineweb_mask.tasks.ledger.lookup import find_in_source
from fineweb_mask.tasks.ledger.outside import Judges, explain_source_row, explain_text, filtered
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.blocks import grouped
from fineweb_mask.tasks.selection.corpus.policy_file import Models
from fineweb_mask.tasks.source.discovery import discover
from tests.tasks import jobs
from tests.tasks.conftest import sentence


def ingest_job(built, shard=0, **changes):
    settings = built.recipe.ingest.model_copy(update=changes)
    return jobs.ingest_job(built.workspace, built.shards[shard], built.recipe.source, settings)


@pytest.fixture(scope="module")
def judges(own):
    folder = own.embedding_model
    models = Models(own.workspace, own.recipe, own.models, own.statistics, folder.path, folder.fingerprint)
    return Judges(ingest_job(own), models, None, {})


def stages(one):
    return {step.stage: step for step in one.decisions}


def test_rows_that_ingest_dropped_are_told_with_their_reason(own, ledger):
    source = own.recipe.source
    places = {shard.relative: place for place, shard in enumerate(own.shards)}
    ids = [f"<urn:uuid:{n}>" for n in range(200)]
    kept = {
        name
        for shard in ledger.shards
        for name in pq.read_table(ledger.workspace.resolve(shard.documents))["id"].to_pylist()
    }
    gone = {name: row for name, row in find_in_source(discover(source), source, ids) if name not in kept}
    assert len(gone) == 2
    told = [
        explain_source_row(ledger, ingest_job(own, places[row.shard.relative]), row, name) for name, row in gone.items()
    ]
    short, repeated = sorted(told, key=lambda one: len(one.text))
    assert (short.outcome, repeated.outcome) == (DROPPED, DROPPED)
    assert short.decisions[0].reason == "too_short: 10 characters, ingest.min_chars is 20"
    assert short.decisions[0].numbers == {"reason": "too_short"}
    numbers = repeated.decisions[0].numbers
    assert (numbers["reason"], numbers["kept_shard"], numbers["kept_row"]) == ("duplicate", "b", 6)


def test_a_text_is_dropped_for_what_ingest_would_drop_it_for(ledger, judges):
    one = explain_text(ledger, judges, "short", "file")
    assert one.outcome == "would be dropped"
    assert [step.decision for step in one.decisions] == [DROPPED]


def test_filters_are_those_of_the_recipe(own):
    batch = conform(pa.record_batch({"text": [sentence(3)]}), "text", "id", [])
    assert filtered(ingest_job(own), batch)[0] is None
    assert filtered(ingest_job(own, min_chars=1000), batch)[0] == "too_short"
    assert filtered(ingest_job(own), batch, "too_large")[0] == "too_large"


def by_a_rule(ledger, judges):
    selection = ledger.settings.selection.model_copy(update={"metrics": "pairwise"})
    settings = ledger.settings.model_copy(update={"selection": selection})
    masks = {}
    for group in grouped(ledger.shards, selection):
        job = SelectJob(root=str(ledger.workspace.root), shards=group, settings=selection)
        select(job)
        masks |= {file.name: file for file in job.shard_files() or []}
    shards = [shard.model_copy(update={"masks": masks[shard.name]}) for shard in ledger.shards]
    models = judges.models._replace(settings=settings)
    return ledger._replace(settings=settings, shards=shards), judges._replace(models=models)


def test_a_text_like_a_document_is_judged_as_that_is(ledger, judges):
    """The rule of all blocks is near the selection of each: most answers are the same."""
    ledger, judges = by_a_rule(ledger, judges)
    shard, same, seen = ledger.shards[0], 0, set()
    texts = pq.read_table(ledger.workspace.resolve(shard.documents))["text"].to_pylist()
    quality = pq.read_table(ledger.workspace.resolve(shard.scores))["quality"].to_pylist()
    selected = pq.read_table(ledger.workspace.resolve(shard.masks))["selected"].to_pylist()
    for row in range(0, shard.rows, 2):
        one = explain_text(ledger, judges, texts[row], "file")
        found = stages(one)
        assert found["score"].numbers["quality"]["score"] == pytest.approx(quality[row], abs=1e-4)
        [near] = found["select"].numbers["nearest"]
        assert near["cosine"] == pytest.approx(1, abs=1e-2)
        expected = SELECTED if selected[row] else NOT_SELECTED
        same += found["select"].decision == expected
        seen.add(one.outcome)
        above = found["select"].numbers["marginal_gain_above_threshold"]
        assert (above >= 0) == (found["select"].decision == SELECTED)
    assert seen == {"would be selected", "would be not selected"}
    assert same >= 0.75 * len(range(0, shard.rows, 2))
    assert len(list((ledger.workspace.cache / "ledger").glob("rule-*.safetensors"))) == 1


def test_without_a_rule_the_fates_of_like_documents_are_told(ledger, judges):
    settings = ledger.settings.model_copy(
        update={"selection": ledger.settings.selection.model_copy(update={"metrics": "facility"})}
    )
    one = explain_text(ledger._replace(settings=settings), judges, sentence(1000), "file")
    assert one.outcome == NOT_KNOWN
    numbers = stages(one)["select"].numbers
    assert len(numbers["nearest"]) == 20
    assert numbers["selected_of_nearest"] == sum(near["selected"] for near in numbers["nearest"])
    assert "facility" in stages(one)["select"].reason


def test_a_near_duplicate_is_found_by_the_sketches_of_the_corpus(own, ledger, judges):
    pytest.importorskip("rensa")
    long = IngestSettings(min_chars=20, near_dedup="minhash", near_threshold=0.5)
    ledger = ledger._replace(settings=ledger.settings.model_copy(update={"ingest": long}))
    sketch = Sketch.for_threshold(0.5)
    files = {
        file.name: sort_rows(SortJob(root=own.workspace.address, by="signatures", file=file, sketch=sketch))
        for file in own.documents
    }
    text = pq.read_table(ledger.workspace.resolve(ledger.shards[1].documents))["text"][2].as_py()
    one = explain_text(ledger, judges._replace(signatures=files), text + " more", "file")
    found = stages(one)["dedup"]
    assert (one.outcome, found.decision) == ("would be dropped", DROPPED)
    assert (found.numbers["kept_shard"], found.numbers["kept_row"]) == (ledger.shards[1].name, 2)
    assert 0.5 < found.numbers["similarity"] < 1
    other = stages(explain_text(ledger, judges._replace(signatures=files), sentence(5000), "file"))["dedup"]
    assert other.decision == KEPT
    assert stages(explain_text(ledger, judges, text, "file"))["dedup"].decision == NOT_KNOWN
