"""Documents with the reason of each: what other thresholds of near-duplicates would drop."""

from fineweb_mask.tasks.reporting.sections.documents import near_duplicates


def test_each_threshold_is_shown_with_its_least_similar_pair_and_says_what_is_not_known(built):
    job = built.report_job
    name = job.shards[0].name
    tried = [
        {"threshold": 0.6, "documents": 7, "similarity": 0.61, "dropped": [name, 3], "kept": ["against-1/a", 5]},
        {"threshold": 0.7, "documents": 2, "similarity": 0.85, "dropped": [name, 3], "kept": [name, 1]},
        {"threshold": 0.9, "documents": 0},
    ]
    [section] = near_duplicates(job.workspace, job.shards, {"threshold": 0.7, "tried": tried})
    assert [list(row) for row in section.tables[0].rows] == [[0.6, 7, 0.61], [0.7, 2, 0.85], [0.9, 0, None]]
    [text] = section.text
    assert "0.7 is this run's" in text
    assert "bring only a part together" in text
    dropped, kept = section.sides
    assert [len(dropped.cards), len(kept.cards)] == [2, 2]
    assert dropped.cards[0].text == dropped.cards[1].text != kept.cards[1].text
    assert kept.cards[0].title == "against-1/a, row 5"
    assert kept.cards[1].note == "from 0.7: similarity 0.850"
    assert near_duplicates(job.workspace, job.shards, {"threshold": 0.7, "tried": []}) == []
    assert near_duplicates(job.workspace, job.shards, {}) == []
