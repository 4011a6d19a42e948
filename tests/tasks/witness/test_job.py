"""The witness over a workspace: held out by text, nothing like it learned from, figures for pages, reasons for none."""

import re
from typing import Any

import numpy as np
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.registry import refreshed_by
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.witness.documents import POOL, read_corpus
from fineweb_mask.tasks.witness.job import measure_teaching
from fineweb_mask.tasks.witness.section import TITLE, teaching_column, teaching_section, teaching_sentence
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


def test_every_set_and_arm_has_its_figures(found):
    assert set(found.details["sets"]) == {POOL}
    for measured in found.details["sets"].values():
        assert measured["documents"] + measured["left_out"] == DOCUMENTS // 20
        assert set(measured["against_random"]) == {"selection", "top_quality"}
        assert len(measured["losses"]["random"]) == 8
    assert 0 < found.details["excluded"] < DOCUMENTS // 2


def test_what_is_held_out_depends_on_the_text_and_not_on_the_selection(job, shards):
    masks = {"selection": [shard.masks for shard in shards[::-1]]}
    first, second = map(corpus_of, (job, job.model_copy(update={"shards": shards[::-1], "selections": masks})))
    one, other = (corpus.held_out[POOL].sample.sizes for corpus in (first, second))
    assert np.sort(one).tolist() == np.sort(other).tolist()
    assert len(first.pool.ends) == len(second.pool.ends)
    clusters = first.held_out[POOL].sample.clusters
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


def test_a_target_is_held_out_and_one_too_short_says_so(job, target):
    corpus = corpus_of(job, targets=target([words(5_000 + seed) for seed in range(60)]))
    assert len(corpus.held_out["theirs"].sample.sizes) == 60
    [remark] = corpus.remarks[1:]
    assert re.search(r"Target theirs has only 60 documents of [\d,]+ tokens to predict: intervals are wide", remark)
    for texts, message in (
        ([f"word {seed}" for seed in range(40)], r"the 40 documents .* at least 1,000 are needed"),
        ([words(seed) for seed in range(39)], "it has 39 different documents with text, at least 40"),
        ([None, "", "  "] * 20, "it has 0 different documents with text"),
    ):
        with pytest.raises(DataError, match=f"target theirs: {message}"):
            corpus_of(job, targets=target(texts))


@pytest.mark.parametrize(("own", "is_most"), [(10, False), (35, True)])
def test_documents_of_a_target_that_the_corpus_has_are_counted_and_read_by_no_arm(job, target, own, is_most):
    without = corpus_of(job)
    texts = [words(row) for row in range(20, DOCUMENTS)][::20][:own] + [words(5_000 + seed) for seed in range(60 - own)]
    corpus = corpus_of(job, targets=target([text.upper() for text in texts]))
    [remark] = [one for one in corpus.remarks if "word for word" in one]
    assert f"{own} of the 60 documents of target theirs are in the corpus word for word" in remark
    assert ("Most of this target" in remark) == is_most
    assert corpus.excluded >= without.excluded + 0.8 * own  # but for those that are held out or too much alike


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


def test_the_page_says_it_in_a_sentence_and_a_table(found):
    section = teaching_section(found.details)
    assert section.title == TITLE
    assert len(section.tables) == 1
    [row] = [row for row in section.tables[0].rows if row[0] == "selection"]
    assert len(row) == len(section.tables[0].columns)
    assert teaching_column(found.details)["random"] == 0


NONE = "no difference seen"


@pytest.mark.parametrize(
    ("random", "lengths", "expected"),
    [
        (("better", -0.038), ("better", -0.014), "1.9% better than one that .* random tokens, and 0.7% better than"),
        (("worse", 0.1), (NONE, 0.001), "5.0% worse than one .* the same lengths no difference is seen"),
        (
            (NONE, 0.001),
            None,
            r"as well as .* \(a difference of 1\.0% would have been seen\)\. Its documents are as long",
        ),
    ],
)
def test_the_sentence_names_the_control(random, lengths, expected):
    def effect(verdict, difference):
        return {"verdict": verdict, "difference": difference, "visible": 0.02}

    measured = {
        "losses": {"random": [1.99, 2.01]},
        "against_random": {"selection": effect(*random)},
        "against_lengths": {} if lengths is None else {"selection": effect(*lengths)},
    }
    sentence = teaching_sentence({"sets": {POOL: measured}})
    assert re.search(expected, sentence)
    assert sentence.endswith(".")


def test_a_report_that_is_built_again_takes_the_figures_that_are_current():
    assert refreshed_by({"report"}) == {"report"}
    assert refreshed_by({"select"}) > {"select", "partition", "materialize", "witness", "report"}
    assert refreshed_by({"dedup"}) > {"dedup", "sketch"}
