"""Shares of groups: what a chart cannot say is not drawn, and a decile that beats the best one is explained."""

from types import SimpleNamespace

import numpy as np

from fineweb_mask.tasks.reporting.breakdown import Breakdown, Distribution
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.sections.shares import distributions, retention

NOTHING = Distribution(np.arange(3.0), np.array([7, 0]), np.array([2, 0]), (0.5, 0.5))


def broken_down(**changes):
    empty = {"deciles": {}, "missing": {}, "histograms": {"n_chars": NOTHING, "quality": NOTHING}}
    numbers = np.arange(100, dtype=np.float32)
    return Breakdown(**(empty | {"groups": {}, "between": {}, "quality": numbers, "kept": numbers} | changes))


def test_a_column_of_one_value_and_a_histogram_of_one_bar_are_not_drawn():
    groups = {"dump": [Share("unknown", 90, 9)], "topic": [Share("a", 60, 3), Share("b", 30, 6)]}
    missing = {"language_score": Share("unknown", 90, 9)}
    section = retention(broken_down(groups=groups, deciles={"language_score": []}, missing=missing))
    assert section.figures[0].chart.numbers.columns[0].label == "topic"
    assert [figure.name for figure in section.figures] == ["retention-by-0"]
    assert section.figures[0].caption == "All eligible documents. Highest share: 20.0% (b). Lowest: 5.0% (a)."
    assert distributions(broken_down()).figures == []


def test_domains_are_drawn_from_a_hundredth_of_the_documents_on():
    tiny = [Share(f"{number}.example", 5, 1) for number in range(30)]
    assert not retention(broken_down(groups={"domain": [*tiny, Share("792 others", 850, 100)]})).figures
    large = [Share("a.example", 200, 50), *tiny, Share("no url", 40, 4), Share("792 others", 610, 46)]
    [figure] = retention(broken_down(groups={"domain": large})).figures
    assert figure.chart.numbers.rows == [["a.example", 200, 50, 0.25], ["all others", 800, 80, 0.1]]


def measured(nearest):
    of = SimpleNamespace(queries=np.arange(100), nearest=np.repeat(np.array(nearest), 10))
    return SimpleNamespace(geometry={"eligible": of}, quality=np.arange(100, dtype=np.float32))


def test_a_decile_that_keeps_more_than_the_best_is_explained_by_what_was_measured_only():
    rows = [Share(str(number), 10, 1 + 7 * (number == 5)) for number in range(10)]

    def caption(shares, near=None):
        return retention(broken_down(deciles={"quality": shares}), near).figures[0].caption

    plain = " Decile 6 keeps more than the best one: quality is not all that decides."
    assert caption(rows).endswith(plain)
    assert caption(rows, measured([0.5] * 9 + [0.4])).endswith(plain)
    assert caption(rows, measured([0.5] * 9 + [0.9])).endswith(
        f"{plain} The best documents are more alike: their nearest neighbours have a mean cosine of 0.90, those of "
        "decile 6 of 0.50, and of documents that are alike fewer are taken."
    )
    assert "keeps more" not in caption([*rows[:5], Share("5", 10, 1), *rows[6:9], Share("9", 10, 8)])
