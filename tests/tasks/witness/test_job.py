"""The witness over a workspace: held out by text, nothing like it learned from, figures for pages, reasons for none."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.witness import documents
from fineweb_mask.tasks.witness.documents import HELD_OUT_CHARACTERS, POOL, read_corpus
from fineweb_mask.tasks.witness.job import (
    TITLE,
    measure_teaching,
    teaching_column,
    teaching_section,
    teaching_sentence,
)
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.jobs import witness_job
from tests.tasks.witness.conftest import DOCUMENTS, words


@pytest.fixture(scope="module")
def job(selected, shards):
    masks = {"selection": [shard.masks for shard in shards]}
    return witness_job(selected.workspace, shards, masks, most_tokens=100_000)


@pytest.fixture(scope="module")
def found(job):
    return measure_teaching(job)


def corpus_of(job, **changes):
    how: dict[str, Any] = {"threshold": job.threshold, "most_tokens": job.most_tokens} | changes
    return read_corpus(job.workspace, job.shards, job.selections, how.pop("targets", {}), **how)


def test_every_set_and_arm_has_its_figures_and_a_row_on_the_page(found):
    assert set(found.details["sets"]) == {POOL}
    for measured in found.details["sets"].values():
        assert measured["documents"] + measured["left_out"] == DOCUMENTS // 20
        assert set(measured["against"]) == {"selection", "top_quality"}
        assert len(measured["losses"]["random"]) == 8
    assert 0 < found.details["excluded"] < DOCUMENTS // 2
    assert teaching_column(found.details)["random"] == 0
    section = teaching_section(found.details)
    [table] = section.tables
    assert section.title == TITLE
    assert {row[0] for row in table.rows} == {"random", "selection", "top_quality"}
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_what_is_held_out_depends_on_the_text_and_not_on_the_selection(job, shards):
    masks = {"selection": [shard.masks for shard in shards[::-1]]}
    first, second = map(corpus_of, (job, job.model_copy(update={"shards": shards[::-1], "selections": masks})))
    one, other = (corpus.held_out[POOL].sizes for corpus in (first, second))
    assert np.sort(one).tolist() == np.sort(other).tolist()
    assert len(first.pool.ends) == len(second.pool.ends)
    clusters = first.held_out[POOL].clusters
    assert 1 < len(np.unique(clusters)) < len(clusters)  # pages of one host are drawn by themselves


def test_nothing_like_a_held_out_document_is_left(job):
    strict, loose = corpus_of(job, threshold=0.5), corpus_of(job, threshold=1.1)
    assert strict.excluded > loose.excluded > 0  # copies share a run of words, whatever their vectors are
    with pytest.raises(DataError, match="all are too much like them"):
        corpus_of(job, threshold=-1.0)
    some = corpus_of(job, most_tokens=7_000)
    assert len(some.pool.ends) < len(loose.pool.ends)
    assert some.pool.lengths[some.selections["selection"]].sum() >= 7_000


@pytest.fixture
def target(tmp_path, make_parquet, make_document):
    """Return the function that writes texts as the target `theirs`."""

    def write(texts):
        rows = [make_document(seed, text=text) for seed, text in enumerate(texts)]
        return {"theirs": find_files(str(make_parquet(tmp_path / "theirs.parquet", rows)), "target")}

    return write


def test_a_target_is_held_out_its_beginnings_and_one_too_small_says_so(job, target):
    long = "a long word " * 1_000
    corpus = corpus_of(job, targets=target([*(words(5_000 + seed) for seed in range(59)), long, long]))
    assert len(corpus.held_out["theirs"].sizes) == 60
    assert corpus.held_out["theirs"].sizes.max() == HELD_OUT_CHARACTERS
    for texts, number in (([words(seed) for seed in range(39)], 39), ([None, "", "  "] * 20, 0)):
        with pytest.raises(DataError, match=f"target theirs: it has {number} different documents with text, at least"):
            corpus_of(job, targets=target(texts))


@pytest.mark.parametrize("own", [10, 35])
def test_documents_of_a_target_that_the_corpus_has_are_read_by_no_arm(job, target, own):
    texts = [words(row) for row in range(20, DOCUMENTS)][::20][:own] + [words(5_000 + seed) for seed in range(60 - own)]
    corpus = corpus_of(job, targets=target([text.upper() for text in texts]))
    assert corpus.excluded >= corpus_of(job).excluded + 0.8 * own  # but for those that are held out or too much alike


def test_a_dataset_of_this_package_is_a_target_and_a_file_without_texts_says_what_it_must_have(job, built, tmp_path):
    theirs = {"theirs": find_files(str(built.workspace.dataset), "target")}
    with pytest.raises(DataError, match=r"it has \d+ different documents"):
        corpus_of(job, targets=theirs)
    pq.write_table(pa.table({"body": ["a text"]}), tmp_path / "books.parquet")
    with pytest.raises(BadShardError, match=r"books\.parquet: it has no column 'text': .* rename the column"):
        corpus_of(job, targets={"theirs": find_files(str(tmp_path), "target")})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mine=data/books.parquet", ("mine", "data/books.parquet")),
        ("data/year=2024/a.jsonl.gz", ("a", "data/year=2024/a.jsonl.gz")),
        ("folder/", ("folder", "folder/")),
    ],
)
def test_a_target_has_the_name_of_its_file_or_one_of_its_own(monkeypatch, text, expected):
    monkeypatch.setattr(documents, "find_files", lambda path, _: [path])
    name, path = expected
    assert documents.find_targets([text]) == {name: [path]}


def test_a_corpus_too_small_says_why_nothing_is_measured(built):
    found = measure_teaching(witness_job(built.workspace, built.selection_shards, {"selection": built.masks}))
    assert "use a larger corpus" in found.details["skipped"]
    assert found.details["skipped"] in teaching_section(found.details).text[0]
    assert teaching_column(found.details) == {}


def test_the_key_changes_with_the_selection_and_the_target(job):
    other = job.selections["selection"][0].model_copy(update={"fingerprint": "other"})
    selections = {"selection": [other, *job.selections["selection"][1:]]}
    changes = [{}, {"selections": selections}, {"most_tokens": 5}]
    assert len({job.model_copy(update=change).key for change in changes}) == 3


NONE = "no difference seen"


@pytest.mark.parametrize(
    ("random", "lengths", "expected"),
    [
        (("better", 0.019), ("better", 0.007), "1.9% better than one that .* random tokens, and 0.7% better than"),
        (("worse", -0.05), (NONE, 0.001), "5.0% worse than one .* the same lengths no difference is seen"),
        ((NONE, 0.001), None, r"as well as .* \(-0\.9% to \+1\.1% better\)\. Its documents are as long"),
    ],
)
def test_the_sentence_names_the_control(random, lengths, expected):
    def effect(verdict, gain):
        return {"verdict": verdict, "gain": gain, "low": gain - 0.01, "high": gain + 0.01}

    against, control = {"random": effect(*random)}, "of its lengths"
    if lengths is not None:
        against[control] = effect(*lengths)
    found = {"sets": {POOL: {"against": {"selection": against}}}, "lengths": {"selection": control} if lengths else {}}
    sentence = teaching_sentence(found)
    assert re.search(expected, sentence)
    assert sentence.endswith(".")
