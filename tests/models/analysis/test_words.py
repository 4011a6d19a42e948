"""Names of clusters: the words that distinguish a cluster from the others."""

import numpy as np

from fineweb_mask.models.analysis.words import telling_words

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


def test_a_page_that_repeats_a_word_does_not_name_its_cluster():
    texts = ["casino " * 500 + "whale", "whale reef", "whale tide", "oven", "oven flour"]
    assert telling_words(texts, np.array([0, 0, 0, 1, 1]), 2, n_words=1) == ["whale", "oven"]


def test_words_of_any_script_and_texts_without_words():
    assert telling_words(["кит море", "кит риф", "печь мука"], np.array([0, 0, 1]), 2, 1) == ["кит", "мука"]
    assert telling_words(["1 2 3", "<>"], np.array([0, 1]), 2) == ["", ""]
    assert telling_words([], np.array([], dtype=int), 2) == ["", ""]
    assert telling_words(["x" * 500 + " whale"], np.array([0]), 1) == ["whale"]
