"""What is said of steps of which it is known what they dropped, rightly and wrongly."""

import random

import pytest

from fineweb_mask.models.audit.planting import Template, edited, prose
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.tasks.audit.audit import (
    LONGEST,
    Pair,
    _drawn_pairs,
    _page,
    measured,
    step_row,
)
from fineweb_mask.tasks.audit.fates import EXACT, FILTERS, NEAR, Fates
from fineweb_mask.tasks.audit.sample import SAMPLED

SETTINGS = IngestSettings(near_dedup="minhash")
DICE = random.Random(0)


def fates_of(rows):
    """Rows as (kind, group, original, step, reason, text, twin)."""
    kinds, groups, originals, steps, reasons, texts, twins = (list(column) for column in zip(*rows, strict=True))
    found = {place: twin for place, twin in enumerate(twins) if twin is not None}
    return Fates(kinds, groups, originals, steps, reasons, texts, found)


def judged(rows, settings=SETTINGS):
    fates = fates_of(rows)
    pairs = _drawn_pairs(settings, fates)
    return measured(settings, fates, pairs, "site"), pairs


def page(**changes):
    row = {"kind": SAMPLED, "group": "a", "original": None, "step": None, "reason": None, "text": "t", "twin": None}
    return tuple((row | changes).values())


def pages(count, **changes):
    return [page(**changes) for _ in range(count)]


def step_of(details, name):
    return next(step for step in details["steps"] if step["step"] == name)


def near(text, **changes):
    return page(step=NEAR, reason=NEAR, text=text, **changes)


def test_pairs_that_are_not_as_alike_as_asked_are_a_warning_with_a_setting():
    shared = Template(DICE)
    rows = [page(text=shared.page(DICE)), *(near(shared.page(DICE), twin=0) for _ in range(60))]
    details, pairs = judged(rows)
    assert step_of(details, NEAR)["alike"].share == 0
    assert "near: 0% [0, 6] of the drawn pairs are as alike as asked" in details["warnings"]
    assert (
        "raise ingest.near_threshold, so that only texts that are more alike are near-duplicates" in details["advice"]
    )
    assert all(pair.similarity == pytest.approx(0.56, abs=0.03) for pair in pairs[NEAR])


def test_real_copies_are_no_warning():
    text = prose(DICE)
    rows = [page(text=text), *(near(edited(text, 0.01, DICE), twin=0) for _ in range(60)), *pages(900)]
    details, _ = judged(rows)
    assert step_of(details, NEAR)["alike"].share == 1
    assert details["warnings"] == []
    assert details["advice"] == ["nothing needs to be changed"]


def test_a_group_that_comes_to_a_step_and_does_not_leave_it_is_named_with_the_reason():
    """It is counted from the source on: nothing of it is eligible any more."""
    lost = pages(40, group="gone", step=FILTERS, reason="gopher_quality: gopher_enough_stop_words")
    details, _ = judged([*pages(60), *lost, *pages(19, group="few", step=FILTERS, reason="too_short")])
    assert details["warnings"] == [
        "filters: 1 groups keep less than 5%: gone 0% (gopher_quality: gopher_enough_stop_words)"
    ]
    assert details["groups"][0] == {
        "group": "gone",
        "documents": 40,
        "kept": 0,
        "filters": 40,
        "benchmarks": 0,
        "known": 0,
        "exact": 0,
        "near": 0,
        "urls": 0,
    }
    assert step_of(details, EXACT)["came"] == 60
    assert step_of(details, EXACT)["groups"] == [{"group": "a", "came": 60, "kept": 1, "reason": ""}]
    assert step_row(step_of(details, FILTERS))[-1] == "gone 0% !"


def test_of_a_copy_and_its_original_one_is_enough_and_those_gone_before_do_not_count():
    rows = [
        page(),
        page(kind="copy", group="", original=0, step=EXACT, reason="duplicate"),
        page(step=EXACT, reason="duplicate", twin=3),
        page(kind="copy", group="", original=2),
        page(),
        page(kind="copy", group="", original=4),
        page(step=FILTERS, reason="too_short"),
        page(kind="copy", group="", original=6),
    ]
    found = step_of(judged(rows)[0], EXACT)["planted"]["copy"]
    assert (found.share, found.n) == (pytest.approx(2 / 3), 3)


def test_an_original_that_is_dropped_for_another_says_nothing_of_its_copy():
    text = prose(DICE)
    rows = [
        page(text=text),
        near(text, twin=0),
        page(kind="edited 20%", group="", original=1, text=edited(text, 0.2, DICE)),
    ]
    assert "edited 20%" not in step_of(judged(rows)[0], NEAR)["planted"]


def test_copies_as_alike_as_asked_that_are_not_found_are_a_warning():
    texts = [prose(DICE) for _ in range(60)]
    rows = [page(text=text) for text in texts]
    rows += [
        page(kind="edited 1.5%", group="", original=row, text=edited(text, 0.015, DICE))
        for row, text in enumerate(texts)
    ]
    rows += [
        page(kind="edited 20%", group="", original=row, text=edited(text, 0.2, DICE)) for row, text in enumerate(texts)
    ]
    details, _ = judged(rows)
    assert "near: 0% [0, 6] of the planted copies that are as alike as asked are found" in details["warnings"]
    assert any(advice.startswith("lower ingest.near_threshold: ") for advice in details["advice"])
    assert step_of(details, NEAR)["alike_found"].n == 60


@pytest.mark.parametrize(
    ("rows", "warning"),
    [
        (
            pages(50, kind="clean", group="", step=FILTERS, reason="c4_quality: x"),
            "filters: 100% [93, 100] of the clean",
        ),
        (
            pages(50, kind="template", group="", step=NEAR, reason=NEAR),
            "near: 100% [93, 100] of the pages of a template",
        ),
        (
            pages(50, kind="copy", group="", original=0),
            "exact: 0% [0, 7] of the planted cases of the kind copy are found",
        ),
    ],
)
def test_planted_cases_that_fare_wrongly_are_a_warning(rows, warning):
    details, _ = judged([*pages(30), *rows])
    assert [text for text in details["warnings"] if text.startswith(warning)]


def test_steps_that_are_off_are_left_out():
    details, _ = judged(pages(30), IngestSettings(exact_dedup="off"))
    assert [step["step"] for step in details["steps"]] == [FILTERS]


def test_texts_from_the_web_are_inert_on_the_page_and_long_ones_cut():
    attack = "<script>alert(1)</script> <img src=x onerror=alert(1)> " * 3 + "x" * 9_000 + " word" * 5_000
    details, _ = judged([page(group=attack), page(group=attack, step=EXACT, reason="duplicate", text=attack, twin=0)])
    pair = Pair(attack, attack.replace("word", "<b>bold</b>"), attack[:50], attack[:50], 0.4, is_alike=False)
    shown = _page(details, {NEAR: [pair] * 30})
    html = shown.html()
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "<b>bold" not in html
    assert html.count("<mark>") >= 1
    assert len(html) < 200_000
    assert all(
        sum(map(len, card.pieces)) <= LONGEST + 10
        for section in shown.sections
        for side in section.sides
        for card in side.cards
    )
    assert "alert" in shown.markdown()
