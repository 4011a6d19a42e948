"""What the report says first: what the selection did, and what to worry about."""

from typing import Any

import numpy as np
import pytest

from fineweb_mask.models.losses import Wiped
from fineweb_mask.tasks.reporting.breakdown import Breakdown, Distribution
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.findings import findings
from fineweb_mask.tasks.reporting.geometry import Diversity, Geometry, Map
from fineweb_mask.tasks.reporting.page import Finding
from fineweb_mask.tasks.reporting.samples import Sample
from fineweb_mask.tasks.reporting.templating import anchor_of
from fineweb_mask.tasks.workspace.records.counts import Counts

RECIPE = {"source": {"path": "pages"}, "quality": {"scorers": [{"kind": "column"}]}}
BLOCKS = [{"name": "a", "documents": 1000, "selected": 100, "gap": 0.01}]
NEUTRAL = [Share(str(decile), 100, 10) for decile in range(10)]


def counted(**changes: Any) -> Counts:
    documents = {"documents_in": 1200, "documents_ingested": 1000, "documents_eligible": 1000}
    outcome = {"selected": 100, "not_selected": 900, "dropped": {"too_short": 200}}
    names = ("tokens_in", "tokens_ingested", "tokens_eligible", "tokens_selected", "tokens_estimated")
    return Counts(**(dict.fromkeys(names, 0) | documents | outcome | changes))


def broken_down(deciles: list[Share] = NEUTRAL, groups: list[Share] | None = None, place: int = 4) -> Breakdown:
    edges = np.linspace(0, 1000, 11)
    before = np.full(10, 100)
    after = np.zeros(10, dtype=np.int64)
    after[place : place + 2] = 50
    return Breakdown(
        deciles={"quality": deciles},
        missing={},
        histograms={
            "n_chars": Distribution(edges, before, after),
            "quality": Distribution(edges / 1000, before, before // 10),
        },
        groups={"domain": groups or [Share("a.example", 500, 50), Share("b.example", 500, 50)]},
        quality=np.zeros(1, dtype=np.float32),
    )


def measured(random: float, selected: float) -> Diversity:
    def geometry(rank: float, near: float) -> Geometry:
        return Geometry(100, rank, 0.1, np.zeros(1, dtype=np.float32), near)

    sample = Sample([], 100, 1)
    plane = Map(("x", "y"), np.zeros((1, 2)), np.zeros((1, 2)))
    of = {"eligible": geometry(60, random), "random": geometry(50, random), "selected": geometry(55, selected)}
    return Diversity(of, plane, [], sample, sample, np.zeros((1, 2), dtype=np.float32))


def worries(found: list[Finding]) -> list[str]:
    return [finding.text for finding in found if finding.is_worry]


def test_a_selection_without_trouble_says_so() -> None:
    found = findings(RECIPE, counted(), BLOCKS, broken_down(), measured(0.02, 0.01))
    assert worries(found) == []
    did, quality, diverse, last = [finding.text for finding in found]
    assert did.startswith("100 of 1,000 eligible documents are selected, 10.0%. No selection of this size can be more")
    assert quality == "The median quality is +0.50 standard deviations, +0.50 of all that was eligible."
    assert diverse.startswith("It is more diverse than a random subset of its size: an effective rank of 55, 50")
    assert last.startswith("Nothing stands out")
    assert anchor_of(found[0].section) == "distance-from-the-optimum"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"measured": measured(0.02, 0.05)}, "5.0% of the selection are near-duplicates, 2.0% of a random subset"),
        (
            {"breakdown": broken_down(groups=[Share("a", 400, 50), Share("b", 600, 1), Share("tiny", 5, 0)])},
            "Nearly nothing is left of 'b' (1 of 600) (by url domain).",
        ),
        (
            {"breakdown": broken_down([*NEUTRAL[:9], Share("9", 100, 300)])},
            "77% of the selection is of the best tenth by quality",
        ),
        (
            {"wiped": [Wiped("source", "hansard", "near_duplicate", 100, 2, {"near_duplicate": 98})]},
            "Deduplication keeps 2 of 100 documents (2.0%) of source 'hansard': 98 near-duplicates.",
        ),
        ({"breakdown": broken_down(place=0)}, "The selected texts are shorter: half of them have more than"),
        (
            {"counts": counted(documents_in=3000, dropped={"too_short": 500, "wrong_language": 1500})},
            "67% of the source never came to the selection, most of it as wrong language (1,500 documents).",
        ),
        (
            {
                "recipe": {
                    "source": {"path": "mine"},
                    "quality": {"scorers": [{"labels": {"path": "x/data_samples/labels.parquet"}}]},
                }
            },
            "The quality is that of the sample's labels, which are synthetic",
        ),
    ],
)
def test_each_trouble_is_told(changes: dict[str, Any], said: str) -> None:
    usual = {
        "recipe": RECIPE,
        "counts": counted(),
        "blocks": BLOCKS,
        "breakdown": broken_down(),
        "measured": measured(0.02, 0.01),
    }
    [worry] = worries(findings(**(usual | changes)))
    assert worry.startswith(said)


def test_without_vectors_and_documents_nothing_is_made_up() -> None:
    nothing = broken_down()._replace(
        histograms={name: Distribution(np.arange(3.0), np.zeros(2), np.zeros(2)) for name in ("n_chars", "quality")}
    )
    found = findings(RECIPE, counted(selected=0, not_selected=1000), [], nothing, None)
    assert len(found) == 2
    assert not worries(found)


def test_of_many_groups_that_are_wiped_out_those_that_lose_most_are_named() -> None:
    wiped = [Wiped("source", name, "duplicate", 100, 0, {"duplicate": 100}) for name in "abcde"]
    told = findings(RECIPE, counted(), BLOCKS, broken_down(), measured(0.02, 0.01), wiped=wiped)
    assert [text.partition(" of source ")[2] or text for text in worries(told)] == [
        *(f"'{name}': 100 exact duplicates." for name in "abc"),
        "2 more groups are wiped out by one step before the selection.",
    ]
    assert {finding.section for finding in told if finding.is_worry} == {"What each group loses"}


@pytest.mark.parametrize(
    ("scorers", "first"),
    [
        (
            [{"kind": "rules"}],
            "The quality is by rules of thumb: it says whether a text is prose, not whether it is good",
        ),
        ([], "No quality is scored: diversity and near-duplicates alone decide what is selected."),
    ],
)
def test_what_the_quality_is_not_comes_first(scorers: list[dict[str, str]], first: str) -> None:
    recipe = RECIPE | {"quality": {"scorers": scorers}}
    found = findings(recipe, counted(), BLOCKS, broken_down(), measured(0.02, 0.01))
    assert found[0].is_worry
    assert found[0].text.startswith(first)
    assert any("median quality" in finding.text for finding in found) == bool(scorers)
    assert not any("Nothing stands out" in finding.text for finding in found)
