"""What the report says first: what was gained and lost, why to doubt it, and that each number says of what."""

from itertools import groupby

import numpy as np
import pytest

from fineweb_mask.models.losses import Wiped
from fineweb_mask.tasks.reporting.breakdown import Breakdown, SelectedShare
from fineweb_mask.tasks.reporting.findings import DOUBT, GAINED, LOST, findings
from fineweb_mask.tasks.reporting.geometry import Cluster, Diversity, Geometry
from fineweb_mask.tasks.reporting.samples import Sample
from fineweb_mask.tasks.reporting.templating import anchor_of
from fineweb_mask.tasks.workspace.records.counts import Counts

RECIPE = {"source": {"path": "pages"}, "quality": {"scorers": [{"kind": "column"}]}}
BLOCKS = [{"name": "a", "documents": 1000, "selected": 100, "gap": 0.01}]
NEUTRAL = [SelectedShare(str(decile), 100, 10) for decile in range(10)]


def counted(**changes):
    documents = {"documents_in": 1200, "documents_ingested": 1000, "documents_eligible": 1000}
    outcome = {"selected": 100, "not_selected": 900, "dropped": {"too_short": 200}}
    names = ("tokens_in", "tokens_ingested", "tokens_eligible", "tokens_selected", "tokens_estimated")
    return Counts(**(dict.fromkeys(names, 0) | documents | outcome | changes))


def broken_down(deciles=NEUTRAL, groups=None, place=4, better=1, lengths=NEUTRAL, between=None):
    known = np.linspace(0, 1, 101)
    best = np.linspace((place + better) / 10, (place + better + 2) / 10, 101)
    topics = groups or [SelectedShare("a", 500, 50), SelectedShare("b", 500, 50)]
    return Breakdown(
        groups={"topic": topics, "quality": deciles, "n_chars": lengths},
        numbers={"n_chars": 1000 * known, "quality": known},
        selected={"n_chars": np.full(9, 100.0 * (place + 1)), "quality": best},
        between=between or {},
        counted="All eligible documents.",
    )


def measured(random, selected, rank=55, clusters=None):
    def geometry(rank, near):
        return Geometry(100, rank, 0.1, 0.5, near)

    sample = Sample(np.empty((0, 2), int), 100, 1)
    of = {"eligible": geometry(60, 0.3), "random": geometry(50, random), "selected": geometry(rank, selected)}
    return Diversity(of, clusters or [], sample, sample)


USUAL = {"recipe": RECIPE, "counts": counted(), "blocks": BLOCKS, "breakdown": broken_down()}
USUAL["measured"] = measured(0.02, 0.01)


def told(**changes):
    found = findings(**(USUAL | changes))
    return {heading: list(some) for heading, some in groupby(found, lambda one: one.heading)}


def texts(found):
    return [one.text for one in found]


def test_a_selection_without_trouble_says_what_was_gained_and_that_nothing_was_lost():
    found = told(counts=counted(tokens_eligible=1000, tokens_selected=120))
    assert list(found) == ["", GAINED, LOST, DOUBT]
    assert not any(one.is_worry for part in found.values() for one in part)
    assert texts(found[""]) == ["100 of 1,000 eligible documents are selected (10.0%), with 12.0% of their tokens."]
    assert texts(found[GAINED]) == [
        "Quality: the median selected document is better than 59% of the eligible ones (+0.60 standard deviations; the "
        "median of all eligible: +0.50).",
        "Near-duplicates: 1.0% of the selection; 2.0% of a random subset of its size, 30.0% of all eligible (cosine "
        "from 0.9).",
        "Diversity: it is more diverse than a random subset of its size, an effective rank of 55 against 50.",
        "Of the way from a random selection to the best possible, at most 1% is missing.",
    ]
    assert texts(found[LOST]) == [
        "No group of 1% of the documents or more has less than half of its share of the selection."
    ]
    assert texts(found[DOUBT]) == [
        "Nothing stands out: near-duplicates are no more than a random subset's, and quality is not all that decides."
    ]
    assert anchor_of(found[GAINED][-1].section) == "distance-from-the-optimum"


def test_it_is_said_whether_all_tokens_are_estimated():
    for estimated, said in ((0, "."), (9, ", in part estimated."), (1000, ", estimated.")):
        counts = counted(tokens_eligible=1000, tokens_selected=120, tokens_estimated=estimated)
        assert texts(told(counts=counts)[""])[0].endswith(f"with 12.0% of their tokens{said}")


SHORTEST = [SelectedShare("1: 9 to 99", 300, 6), *NEUTRAL[1:9], SelectedShare("10", 100, 34)]
TOPICS = [SelectedShare("a", 400, 50), SelectedShare("b", 600, 1), SelectedShare("tiny", 5, 0)]


SEA = [Cluster("sea, whale", 50, 1), Cluster("oven", 50, 99)]
HANSARD = Wiped("source", "hansard", "near_duplicate", 100, 2, {"near_duplicate": 98})
FEW = counted(documents_in=3000, dropped={"too_short": 500, "wrong_language": 1500})
SAMPLE = {"labels": {"path": "x/data_samples/labels.parquet"}}


def scored_by(*scorers):
    return RECIPE | {"quality": {"scorers": list(scorers)}}


@pytest.mark.parametrize(
    ("heading", "changes", "said"),
    [
        (DOUBT, {"measured": measured(0.02, 0.05)}, "5.0% of the selection are near-duplicates; 2.0% of a random"),
        (LOST, {"measured": measured(0.0, 0.0, rank=45)}, "Diversity: it is less diverse than a random subset"),
        (LOST, {"breakdown": broken_down(better=-2)}, "Quality: the median selected document is better than 31% of"),
        (LOST, {"breakdown": broken_down(groups=TOPICS)}, "By topic: 'b' has 3% of what it would have at random (2"),
        (LOST, {"breakdown": broken_down(lengths=SHORTEST)}, "By length decile (characters): '1: 9 to 99' has 20% of"),
        (LOST, {"measured": measured(0.02, 0.01, clusters=SEA)}, "By the words of a cluster: 'sea, whale' has 2% of"),
        (DOUBT, {"blocks": [{"gap": 0.158}]}, "Of the way from a random selection to the best possible, at most 15.8%"),
        (DOUBT, {"blocks": [{"gap": None}]}, "This solver gives no bound on the best possible selection."),
        (
            DOUBT,
            {"breakdown": broken_down([*NEUTRAL[:9], SelectedShare("9", 100, 300)])},
            "77% of the selection is of the",
        ),
        (LOST, {"wiped": [HANSARD]}, "Deduplication keeps 2 of 100 documents (2.0%) of source 'hansard': 98 near-d"),
        (LOST, {"breakdown": broken_down(place=0)}, "The selected texts are shorter: half of them have more than"),
        (LOST, {"counts": FEW}, "67% of the source never came to the selection, most of it as wrong language (1,500 d"),
        ("", {"recipe": scored_by(SAMPLE)}, "The quality is that of the sample's labels, which are"),
        ("", {"recipe": scored_by()}, "No quality is scored: diversity and near-duplicates"),
    ],
)
def test_each_trouble_is_told_where_it_belongs(heading, changes, said):
    found = told(**changes)
    assert [text for text in texts(found[heading]) if text.startswith(said)]
    if heading == "":  # what the quality is not comes first
        assert found[""][0].is_worry
        assert found[""][0].text.startswith(said)
        everything = [text for part in found.values() for text in texts(part)]
        assert any(text.startswith("Quality:") for text in everything) == bool(changes["recipe"]["quality"]["scorers"])
        assert not any("Nothing stands out" in text for text in everything)


def advised(between, **quality):
    """Return what is told of a quality that lies between the values of columns so far."""
    recipe = RECIPE | {"quality": RECIPE["quality"] | quality}
    found = texts(told(breakdown=broken_down(between=between), recipe=recipe).get(DOUBT, []))
    return [text for text in found if "of the differences in quality" in text]


def test_a_quality_that_tells_the_values_of_a_column_apart_is_told_with_the_setting():
    between = {"dump": 0.21, "source": 0.34, "topic": 0.05}
    assert advised(between) == [
        "34% of the differences in quality (of its variance) are between the values of source, not among the documents "
        "of one: some values are preferred as a whole. If these are not better as a whole, set quality.by: source, so "
        "that each document is compared with others of the same source."
    ]
    assert "quality.by: dump" in advised(between, by="source")[0]
    assert advised({"dump": 0.2}) == advised({}) == advised(between, scorers=[]) == []


def test_what_chance_explains_is_no_loss_nor_is_a_small_group():
    rows = [SelectedShare("a", 900, 98), SelectedShare("small but by chance", 60, 2), SelectedShare("tiny", 9, 0)]
    assert texts(told(breakdown=broken_down(groups=rows))[LOST])[0].startswith("No group of 1%")


def test_without_selected_documents_nothing_is_made_up():
    none = dict.fromkeys(("n_chars", "quality"), np.empty(0))
    nothing = broken_down()._replace(numbers=none, selected=none)
    [found] = findings(RECIPE, counted(selected=0, not_selected=1000), [], nothing, None)
    assert found.text == "0 of 1,000 eligible documents are selected (0.0%)."


def test_of_a_score_of_few_values_whose_median_stays_it_is_told_how_many_are_better():
    usual = broken_down()

    def of(known, kept):
        lengths = {"n_chars": np.ones(1)}
        return usual._replace(numbers=lengths | {"quality": known}, selected=lengths | {"quality": kept})

    two = np.array([-0.5, 2.0])
    for better, heading in ((4, GAINED), (1, LOST)):
        said = f"Quality: {better}0% of the selection and 20% of all eligible are better than -0.50 standard deviations"
        found = told(breakdown=of(two.repeat([8, 2]), two.repeat([10 - better, better])))
        assert [text for text in texts(found[heading]) if text.startswith(said)]
    alike = told(breakdown=of(np.zeros(5), np.zeros(2)))[GAINED]
    assert not [text for text in texts(alike) if text.startswith("Quality")]


def test_of_many_groups_that_are_wiped_out_those_that_lose_most_are_named():
    wiped = [Wiped("source", name, "duplicate", 100, 0, {"duplicate": 100}) for name in "abcde"]
    found = told(wiped=wiped)[LOST]
    assert [text.partition(" of source ")[2] or text for text in texts(found)] == [
        *(f"'{name}': 100 exact duplicates." for name in "abc"),
        "2 more groups are wiped out by one step before the selection.",
    ]
    assert {finding.section for finding in found} == {"What each group loses"}
