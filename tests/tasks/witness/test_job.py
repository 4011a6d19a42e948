"""The witness over a workspace: held out by text, nothing like it learned from, figures for pages, reasons for none."""

import re
from typing import Any

import numpy as np
import pytest

from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.witness.documents import GROUPS, POOL, TooFewDocumentsError, read_corpus
from fineweb_mask.tasks.witness.job import WitnessJob, measure_teaching
from fineweb_mask.tasks.witness.section import TITLE, teaching_column, teaching_section, teaching_sentence
from tests.tasks.jobs import witness_job
from tests.tasks.witness.conftest import DOCUMENTS


@pytest.fixture(scope="module")
def job(selected: Any, shards: Any) -> WitnessJob:
    return WitnessJob(
        root=str(selected.workspace.root),
        shards=shards,
        selections={"selection": [shard.masks for shard in shards]},
        by="topic",
        threshold=0.9,
        most_tokens=100_000,
    )


@pytest.fixture(scope="module")
def found(job: WitnessJob) -> Any:
    return measure_teaching(job)


def corpus_of(job: WitnessJob, **changes: Any) -> Any:
    how: dict[str, Any] = {"by": job.by, "threshold": job.threshold, "most_tokens": job.most_tokens} | changes
    masks = {name: (files, "selected") for name, files in job.selections.items()}
    return read_corpus(job.workspace, job.shards, masks, how.pop("targets", {}), **how)


def test_every_set_and_arm_has_its_figures(found: Any) -> None:
    assert set(found.details["sets"]) == {POOL, GROUPS}
    for measured in found.details["sets"].values():
        assert measured["documents"] + measured["left_out"] == 60  # a twentieth
        assert set(measured["against_random"]) == {"selection", "top_quality"}
        assert set(measured["doses"]) >= {"shuffled"}
        assert len(measured["losses"]["random"]) == 8
    assert 0 < found.details["excluded"] < DOCUMENTS // 2


def test_what_is_held_out_depends_on_the_text_and_not_on_the_selection(job: WitnessJob, shards: Any) -> None:
    first, second = (
        corpus_of(job),
        corpus_of(
            job.model_copy(
                update={"shards": shards[::-1], "selections": {"selection": [shard.masks for shard in shards[::-1]]}}
            )
        ),
    )
    for name in (POOL, GROUPS):
        one, other = (corpus.held_out[name].sample.sizes for corpus in (first, second))
        assert np.sort(one).tolist() == np.sort(other).tolist()
    assert len(first.pool.ends) == len(second.pool.ends)


def test_nothing_like_a_held_out_document_is_left(job: WitnessJob) -> None:
    strict, loose = corpus_of(job, threshold=0.5), corpus_of(job, threshold=1.1)
    assert strict.excluded > loose.excluded > 0  # copies share a run of words, whatever their vectors are


def test_a_corpus_of_which_all_is_alike_says_so(job: WitnessJob) -> None:
    with pytest.raises(TooFewDocumentsError, match="all are too much like them"):
        corpus_of(job, threshold=-1.0)


def test_a_sample_of_a_large_corpus_has_enough_tokens(job: WitnessJob) -> None:
    whole, some = corpus_of(job), corpus_of(job, most_tokens=11_000)
    assert len(some.pool.ends) < len(whole.pool.ends)
    assert some.pool.lengths[some.selections["selection"]].sum() >= 11_000


def test_half_of_a_target_is_held_out_and_half_is_a_dose(
    job: WitnessJob, make_parquet: Any, make_document: Any, tmp_path: Any
) -> None:
    path = make_parquet(tmp_path / "theirs.parquet", [make_document(5_000 + seed) for seed in range(60)])
    corpus = corpus_of(job, targets={"theirs": find_files(str(path), "target")})
    assert len(corpus.held_out["theirs"].sample.sizes) == 30
    assert len(corpus.held_out["theirs"].dose.ends) == 30
    few = make_parquet(tmp_path / "few.parquet", [make_document(5_000 + seed) for seed in range(39)])
    with pytest.raises(TooFewDocumentsError, match="target few: it has 39 different documents, at least 40"):
        corpus_of(job, targets={"few": find_files(str(few), "target")})


def test_a_corpus_too_small_says_why_nothing_is_measured(built: Any) -> None:
    masks = {file.name: file for file in built.masks}
    small = [shard.model_copy(update={"masks": masks[shard.name]}) for shard in built.selection_shards]
    found = measure_teaching(witness_job(built.workspace, small, {"selection": [shard.masks for shard in small]}))
    assert "use a larger corpus" in found.details["skipped"]
    assert found.details["skipped"] in teaching_section(found.details).text[0]
    assert teaching_column(found.details) == {}


def test_the_key_changes_with_the_selection_and_the_target(job: WitnessJob) -> None:
    other = job.selections["selection"][0].model_copy(update={"fingerprint": "other"})
    keys = {
        job.key,
        job.model_copy(update={"selections": {"selection": [other, *job.selections["selection"][1:]]}}).key,
        job.model_copy(update={"by": None}).key,
        job.model_copy(update={"most_tokens": 5}).key,
    }
    assert len(keys) == 4


def test_the_page_says_it_in_a_sentence_a_table_and_a_chart(found: Any) -> None:
    section = teaching_section(found.details)
    assert section.title == TITLE
    assert len(section.figures) == len(section.tables) == 2
    [row] = [row for row in section.tables[0].rows if row[0] == "selection"]
    assert len(row) == len(section.tables[0].columns)
    assert section.figures[0].png.startswith(b"\x89PNG")
    assert "sees" not in section.figures[0].caption
    assert teaching_column(found.details)["random"] == 0


@pytest.mark.parametrize(
    ("random", "lengths", "expected"),
    [
        (
            ("better", -0.038),
            ("better", -0.014),
            "1.9% better than one that reads as many random tokens, and 0.7% better than",
        ),
        (
            ("worse", 0.1),
            ("no difference seen", 0.001),
            "5.0% worse than one .* the same lengths no difference is seen",
        ),
        (
            ("no difference seen", 0.001),
            None,
            "as well as .* 1.0% of difference would have been seen. Its documents are as long",
        ),
    ],
)
def test_the_sentence_names_the_control(random: Any, lengths: Any, expected: str) -> None:
    def effect(verdict: str, difference: float) -> dict[str, Any]:
        return {"verdict": verdict, "difference": difference, "visible": 0.02}

    measured = {
        "losses": {"random": [1.99, 2.01]},
        "against_random": {"selection": effect(*random)},
        "against_lengths": {} if lengths is None else {"selection": effect(*lengths)},
    }
    sentence = teaching_sentence({"sets": {POOL: measured}}, "selection")
    assert re.search(expected, sentence)
    assert sentence.endswith(".")
