"""Groups of documents: each value is in one group; domains equal those of the URL parser."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fineweb_mask.models.analysis.groups import between_share, decile_edges, domains, telling_words


def test_a_domain_is_the_host_without_www():
    urls = {
        "https://www.Example.org/a?b=http://c.com": "example.org",
        "http://www2.example.org:8080": "www2.example.org",
        "https://user:secret@[::1]:80/": "[::1]",
        "https://example.org./": "example.org",
        "http://www.": "www",
        "https://пример.рф/путь": "пример.рф",
        "http://x<script>alert(1)</script>.org/": "x<script>alert(1)<",
        "http:///nothing": None,
        "javascript:alert(1)": None,
        None: None,
        "http://" + "x" * 500: "x" * 253,
    }
    assert domains(pa.array([*urls])).to_pylist() == [*urls.values()]


def test_deciles_are_of_equal_size_and_values_that_repeat_make_fewer():
    values = np.random.default_rng(0).permutation(1000).astype(float)
    assert np.histogram(values, decile_edges(values))[0].tolist() == [100] * 10
    assert decile_edges(np.array([0.9] * 90 + [1.0] * 10)).tolist() == pytest.approx([0.9, 0.91, 1.0], abs=0.011)
    edges = decile_edges(np.full(7, 3.0))
    assert edges.tolist() == [3, 3]
    assert np.histogram(np.full(7, 3.0), edges)[0].tolist() == [7]
    assert decile_edges(np.empty(0)).tolist() == []


@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e3, 1e3)))
def test_every_number_is_in_one_group(values):
    edges = decile_edges(values)
    assert 2 <= len(edges) <= 11
    assert np.histogram(values, edges)[0].sum() == len(values)


TOPICS = {"sea": "whale reef tide", "kitchen": "flour oven garlic", "space": "orbit comet galaxy"}


def test_a_cluster_is_named_by_its_distinctive_words():
    dice = np.random.default_rng(0)
    texts, labels = [], []
    for index in range(90):
        topic = list(TOPICS.values())[index % 3].split()
        texts.append(" ".join(["The and PEOPLE website", *dice.choice(topic, size=4), "people 12345"]))
        labels.append(index % 3)
    names = telling_words(texts, np.array(labels), 4)
    assert [set(name.split(", ")) for name in names[:3]] == [set(words.split()) for words in TOPICS.values()]
    assert names[3] == ""
    assert names == telling_words(texts, np.array(labels), 4)


@pytest.mark.parametrize(
    ("texts", "labels", "names"),
    [
        (["casino " * 500 + "whale", "whale reef", "whale", "oven", "oven flour"], [0, 0, 0, 1, 1], ["whale", "oven"]),
        (["кит море", "кит риф", "печь мука"], [0, 0, 1], ["кит", "мука"]),
        (["1 2 3", "<>"], [0, 1], ["", ""]),
        ([], [], ["", ""]),
    ],
    ids=["one page repeats a word", "another script", "no words", "no texts"],
)
def test_a_name_of_one_word(texts, labels, names):
    assert telling_words(texts, np.array(labels, dtype=int), len(names), n_words=1) == names


def share_between(groups):
    """The share of values that are given group by group."""
    return between_share(*(np.array([(group**power).sum() for group in groups]) for power in (0, 1, 2)))


def test_the_share_between_groups_is_that_of_an_analysis_of_variance():
    """Epsilon squared follows from F and its degrees of freedom."""
    from scipy.stats import f_oneway

    dice = np.random.default_rng(5)
    groups = [dice.normal(size=size) + 3 * place for place, size in enumerate((5, 40, 100))]
    f, between, within = f_oneway(*groups).statistic, len(groups) - 1, 145 - len(groups)
    assert share_between(groups) == pytest.approx(between * (f - 1) / (between * f + within))


def test_of_equal_values_of_one_group_of_single_values_and_of_random_groups_nothing_is_between():
    for groups in ([[0.3] * 7, [0.3] * 9], [[1.0], [2.0]], [[1.0, 2.0]], [[]], []):
        assert share_between([np.array(group) for group in groups]) == 0
    assert share_between(np.split(np.random.default_rng(5).normal(size=4000), 2000)) < 0.08
