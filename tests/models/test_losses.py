"""What is counted of a group is what happened to its rows, in bounded memory."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.documents import DocumentFilter, conform
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import (
    LONGEST_VALUE,
    MOST_VALUES,
    GroupLosses,
    OutcomeCounts,
    Wiped,
    by_group,
    losses,
    wiped_out,
)
from fineweb_mask.models.settings import IngestSettings

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "", None]),
        st.sampled_from([None, "", "tiny", "a text of its own", "another text", "a longer text that is kept"]),
        st.sampled_from(["en", "de", None]),
    ),
    max_size=40,
)


@given(ROWS, st.integers(1, 7), st.booleans())
def test_the_counts_of_a_column_are_those_of_the_rows(rows, size, keep_dropped):
    """The sum over all values is what the filter counts; of each value, what a filter of its rows alone counts."""
    settings = IngestSettings(min_chars=5, languages=["en"], exact_dedup="off", keep_dropped=keep_dropped)

    def filtered(some):
        outcomes = OutcomeCounts()
        documents = DocumentFilter(settings, "s", outcomes=outcomes)
        for start in range(0, len(some), size):
            source, text, language = zip(*some[start : start + size], strict=True)
            columns = {"source": pa.array(source, pa.string()), "text": pa.array(text, pa.string())}
            batch = pa.record_batch({**columns, "language": pa.array(language, pa.string())})
            documents.apply(conform(batch, {}, [pa.field("source", pa.string())]))
        return documents, outcomes

    documents, outcomes = filtered(rows)
    for column in ("source", "language", "dump") if rows else ():
        by_reason = Counter[str | None]()
        for (_, reason), number in outcomes.counts[column].items():
            by_reason[reason] += number
        assert by_reason == Counter({None: documents.rows_kept, **documents.dropped}) - Counter()
    for value in {source or None for source, _, _ in rows}:
        own, _ = filtered([row for row in rows if (row[0] or None) == value])
        found = {reason: number for (of, reason), number in outcomes.counts["source"].items() if of == value}
        assert found == Counter({None: own.rows_kept, **own.dropped}) - Counter()
    assert {row["by_column"] for row in outcomes.rows()}.isdisjoint({"text", "id", "url", "token_count"})


def test_values_of_all_types_are_counted_as_text():
    counted = OutcomeCounts()
    invalid = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffa")])
    columns = {
        "year": pa.array([1999, None]),
        "good": pa.array([True, False]),
        "score": pa.array([0.5, 1.0]),
        "topic": pa.array(["sea", "sea"], pa.large_string()),  # as pandas writes texts
    }
    counted.add(pa.record_batch(columns), ["x", None])
    counted.add(pa.record_batch({"name": invalid}), ["invalid_utf8"])
    assert {column: [*values] for column, values in counted.counts.items()} == {
        "year": [("1999", "x"), (None, None)],
        "good": [("true", "x"), ("false", None)],
        "topic": [("sea", "x"), ("sea", None)],
        "name": [("\ufffda", "invalid_utf8")],
    }
    assert counted.kinds == {"year": "int64", "good": "bool", "topic": "string", "name": "string"}


@pytest.mark.parametrize(
    "values", [[str(number) for number in range(MOST_VALUES + 1)], ["a", "b" * (LONGEST_VALUE + 1)]]
)
def test_a_column_of_too_many_or_too_long_values_is_left_out_or_refused(values):
    counted = OutcomeCounts()
    for start in range(0, len(values), 100):
        counted.add(pa.record_batch({"page": values[start : start + 100]}), [None] * len(values[start : start + 100]))
    counted.add(pa.record_batch({"page": ["more"]}), [None])
    assert (counted.rows(), counted.kinds, counted.many) == ([], {}, {"page"})
    wanted = OutcomeCounts(["page"])
    wanted.add(pa.record_batch({"page": values[:-1]}), [None] * (len(values) - 1))
    assert len(wanted.counts["page"]) == len(values) - 1  # as many as are allowed
    with pytest.raises(SettingsError, match=r"^ingest.groups: the column 'page' has too many values, .*name another"):
        wanted.add(pa.record_batch({"page": values[-1:]}), [None])


COUNTS = {("ingest", None): 50, ("ingest", "too_short"): 30, ("ingest", "duplicate"): 20}
COUNTS |= {("dedup", "duplicate"): 10, ("dedup", "near_duplicate"): 39, ("select", "bad_vector"): 1}


def test_each_step_is_given_what_the_steps_before_it_left():
    found = losses(("source", "a"), COUNTS)
    assert [(one.documents, one.dropped) for one in found] == [(100, 30), (100, 20), (50, 10), (40, 39), (1, 1)]
    [group] = by_group(found)
    assert (group.documents, group.kept) == (100, 0)
    assert [*group.dropped] == ["ingest", "duplicate", "near_duplicate", "bad_vector"]
    assert by_group(losses(("source", None), {("ingest", None): 7})) == [GroupLosses("source", None, 7, {})]


@pytest.mark.parametrize(
    ("share", "wiped"),
    [(0.025, []), (0.026, ["near_duplicate"]), (1.0, ["ingest", "near_duplicate", "duplicate"])],  # few are left then
)
def test_a_group_is_wiped_out_by_one_step_that_keeps_less_than_the_share(share, wiped):
    groups = by_group(losses(("source", "a"), COUNTS))
    assert [one.step for one in wiped_out(groups, share)] == wiped
    sizes = {"b": 20, "few": 19, None: 900, "c": 30}  # small groups and rows without a value do not count
    gone = {name: {("dedup", "duplicate"): n, ("ingest", None): n} for name, n in sizes.items()}
    rows = [row for name, counts in gone.items() for row in losses(("source", name), counts)]
    assert [one.value for one in wiped_out(by_group(rows), 0.05)] == ["c", "b"]  # the largest loss first


def test_the_sentence_names_group_step_share_and_the_largest_reasons():
    reasons = {"regex: a": 1, "too_short": 5, "known": 7, "duplicate": 980}
    assert str(Wiped("source", "it's", "ingest", 1_000, 7, reasons)) == (
        'ingest keeps 7 of 1,000 documents (0.7%) of source "it\'s": 980 exact duplicates, 7 known, 5 too short'
    )
    counts = {("ingest", None): 100, ("dedup", "duplicate"): 10, ("dedup", "same_url"): 89, ("select", "bad_vector"): 1}
    [wiped] = wiped_out(by_group(losses(("source", "mirror"), counts)), 0.05)
    assert str(wiped) == "deduplication keeps 1 of 90 documents (1.1%) of source 'mirror': 89 pages of an equal URL"
