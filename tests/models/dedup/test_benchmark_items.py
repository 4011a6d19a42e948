"""Items of benchmarks in documents: found whatever the case, the marks and the lines, and look-alikes are not."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.dedup import benchmark_items
from fineweb_mask.models.dedup.benchmark_items import BenchmarkItems, parts_of, weigh, words_of
from fineweb_mask.models.dedup.ngrams import run_hashes

COMMON = "the of a to in is was for on that with as it at by from which what who how many did were and or be".split()
SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe ri so tu va we xi yo zu".split()


def rare_word(dice):
    return "".join(dice.choices(SYLLABLES, k=3))


def sentence(dice, length):
    """Return a sentence, half of it of words that every page has."""
    return [dice.choice(COMMON) if dice.random() < 0.5 else rare_word(dice) for _ in range(length)]


@pytest.fixture(scope="module")
def pages():
    """300 pages of 200 words, among which no item is."""
    dice = random.Random(0)
    return [" ".join(sentence(dice, 200)) for _ in range(300)]


def found(rows, texts, sample=(), threshold=0.8):
    """Return, for each text, the part that it holds."""
    parts = [part for number, row in enumerate(rows) for part in parts_of(f"row {number}", row)]
    return BenchmarkItems(weigh(parts, sample), threshold).overlaps(texts)


def verbatim(words, dice, pages):
    return " ".join(words)


def wrapped(words, dice, pages):
    place = dice.randrange(1_000)
    before, after = dice.sample(pages, 2)
    return f"{before[:place]} {' '.join(words)} {after}"


def in_lines(words, dice, pages):
    width = dice.randint(2, 6)
    lines = [" ".join(words[place : place + width]) for place in range(0, len(words), width)]
    return dice.choice(pages) + "\n" + "\n  > ".join(lines) + "\n" + dice.choice(pages)


def other_marks(words, dice, pages):
    changed = [dice.choice([word.upper(), word.title(), f"_{word}_", f"({word})", f"“{word}”,"]) for word in words]
    return dice.choice(pages) + " -- " + " ".join(changed) + "?! " + dice.choice(pages)


def joined(words, dice, pages):
    """Return the words, of which two have no space between them any more, as where a hyphen was taken out."""
    place = dice.randrange(len(words) - 1)
    return " ".join([*words[:place], words[place] + words[place + 1], *words[place + 2 :]])


@pytest.mark.parametrize("length", [8, 9, 12, 13, 20, 30, 200])
def test_every_kind_of_copy_is_found_from_eight_words_on(pages, length):
    dice = random.Random(length)
    items = [sentence(dice, length) for _ in range(60)]
    parts = [("text", ""), ("question", ", question"), ("passage", ", passage")] * 20
    rows = [{part: " ".join(words)} for words, (part, _) in zip(items, parts, strict=True)]
    names = [f"row {number}{part}, score 1.00" for number, (_, part) in enumerate(parts)]
    kinds = verbatim, wrapped, in_lines, other_marks
    texts = [planted(words, dice, pages) for planted in kinds for words in items]
    one_by_one = found(rows, [*texts, *pages], pages)
    for place in range(len(kinds)):
        of_kind = one_by_one[60 * place : 60 * (place + 1)]
        assert sum(one == name for one, name in zip(of_kind, names, strict=True)) >= 57
    assert one_by_one[len(texts) :] == [None] * len(pages)


def test_joined_words_are_found_and_apostrophes_and_forms_of_characters_do_not_matter(pages):
    dice = random.Random(2)
    items = [sentence(dice, 12) for _ in range(40)]
    texts = [joined(words, dice, pages) for words in items]
    assert sum(name is not None for name in found([{"question": " ".join(one)} for one in items], texts, pages)) >= 36
    assert words_of("It\u2019s \ufb01ne, isn't it?") == words_of("ITS FINE: ISNT IT") == ["its", "fine", "isnt", "it"]


EXAM = {
    "question": "Which river rises near Zalvora and reaches the sea at Quintamere?",
    "answer": "the lower Ostrevane",
    "passage": "Zalvora lies on a dry plateau. Its only river, the lower Ostrevane, was straightened by Duke Hamrecht, "
    "who drained the marshes between the hills and the harbour of Quintamere within nine years.",
}


def test_parts_are_judged_apart(pages):
    texts = {
        "Quiz. " + EXAM["question"] + " Send us a card.": "row 0, question, score 1.00",
        EXAM["passage"]: "row 0, passage, score 1.00",
        "They fished in the lower Ostrevane.": None,
        f"{EXAM['answer']} {EXAM['answer']}": None,
    }
    assert found([EXAM], [*texts], pages) == [*texts.values()]
    assert found([{"answer": EXAM["answer"]}], [*texts], pages) == [None] * 4


def test_a_question_of_common_words_counts_only_with_its_answer():
    """Every page has each word somewhere: the question says nothing, whoever asks it."""
    dice = random.Random(5)
    question = "what is the main idea of this"
    pages = [" ".join(f"{word} {rare_word(dice)}" for word in question.split()) for _ in range(3_000)]
    row = {"question": question, "answer": "Old herons outlive the fish that they leave uneaten in winter."}
    texts = [
        f"School: {question}? Tell us!",
        f"{question}? A) Ice melts. B) {row['answer']}",
        f"{question}? " + "something else " * 60 + row["answer"],
        row["answer"],
    ]
    assert found([row], texts, pages) == [None, "row 0, question, score 1.00", None, None]


def test_short_items_are_found_on_word_boundaries_only_if_their_words_are_rare(pages):
    rows = [
        {"question": "Capital of upper Zalvora"},
        {"question": "which was it for", "answer": "a"},
        {"question": "Who wrote Zalvora?", "answer": "Imre Hamrecht"},  # found next to its answer
    ]
    names = {
        "the capital of upper Zalvora": "row 0, question, score 1.00",
        "capitals of upper Zalvora": None,
        "the capital of upper Zalvoran": None,
        "which was it for a": None,
        "Who wrote Zalvora? Imre Hamrecht.": "row 2, question, score 1.00",
        "Who wrote Zalvora?": None,
        "Imre Hamrecht wrote.": None,
    }
    assert found(rows, [*names], pages) == [*names.values()]


LICENCE = (
    "permission is hereby granted free of charge to any person who obtains a copy of this software to deal in it "
    "without restriction and without limitation of the rights to use copy modify merge publish and sell copies of it"
)
CODE = "if __name__ == '__main__': import sys; main(sys.argv[1:]) # parse the arguments and exit with the status"
BOILING = "What is the boiling point of {} at the pressure of the sea level?"
INHABITANTS = "How many inhabitants did the city of {} have at the end of the year {}?"


@pytest.mark.parametrize(
    ("item", "page"),
    [
        (f"Under which licence, which begins '{LICENCE[:70]}', did the Hamrecht archive of Zalvora appear?", LICENCE),
        (f"{CODE} def zalvora(values): return sorted(set(values)) [::-1] + quintamere(values)", CODE),
        (BOILING.format("zalvorium"), BOILING.format("quintamerium")),
        (INHABITANTS.format("Zalvora", 1871), INHABITANTS.format("Ostrevane", 1902)),
    ],
    ids=["clause", "idiom", "template", "two names"],
)
def test_look_alikes_are_no_copies(item, page, pages):
    assert found([{"question": item}], [page, item], pages) == [None, "row 0, question, score 1.00"]


def test_a_phrase_of_many_documents_is_none_of_a_benchmark(pages):
    row = {"passage": LICENCE}
    assert found([row], [LICENCE], [*pages, *[LICENCE] * 4]) == ["row 0, passage, score 1.00"]
    assert found([row], [LICENCE], [*pages, *[LICENCE] * 6]) == [None]
    asked = [{"question": f"{LICENCE} {rare_word(random.Random(number))}"} for number in range(30)]
    assert found(asked, [LICENCE], pages) == [None]


def test_edits_lower_the_score_the_threshold_decides_and_scattered_phrases_are_no_copy(pages):
    words = EXAM["passage"].split()
    edited = " ".join([*words[:15], "smoothed", *words[16:]])
    [name] = found([EXAM], [edited], pages, 0.7)
    score = float(name.split()[-1])
    assert 0.7 < score < 1
    for above in (min(1.0, score + 0.02), 1.0):
        assert found([EXAM], [edited], pages, above) == [None]
    apart = [" ".join(words[place : place + 8]) for place in range(0, len(words), 6)]
    assert found([EXAM], [" ".join(apart)], pages, 0.5)[0] is not None
    assert found([EXAM], [pages[0].join(apart)], pages, 0.5) == [None]


def test_decisions_are_the_same_in_any_order_and_company(pages, monkeypatch):
    dice = random.Random(9)
    rows = [{"question": " ".join(sentence(dice, dice.randint(4, 40)))} for _ in range(60)]
    texts = [wrapped(row["question"].split(), dice, pages) for row in rows] + pages[:40]
    together = found(rows, texts, pages)
    assert sum(name is not None for name in together) > 50
    order = dice.sample(range(len(texts)), len(texts))
    assert found(rows, [texts[place] for place in order], pages) == [together[place] for place in order]
    monkeypatch.setattr(benchmark_items, "CHARS_AT_ONCE", 5_000)
    assert found(rows, texts, pages) == together


def test_a_page_of_parts_of_thousands_of_items_is_compared_with_few_of_them(pages, monkeypatch):
    dice = random.Random(3)
    items = [sentence(dice, 30) for _ in range(600)]
    parts = " ".join(" ".join([*item[:12], *"five words that are other".split(), *item[17:]]) for item in items[1:])
    rows = [{"text": " ".join(item)} for item in items]
    compared = []
    score = BenchmarkItems._score
    monkeypatch.setattr(BenchmarkItems, "_score", lambda *given: compared.append(given) or score(*given))
    assert found(rows, [parts], pages, 1.0) == [None]
    assert len(compared) == benchmark_items.MOST_COMPARED
    assert found(rows, [f"{parts} {' '.join(items[0])}"], pages, 1.0) == ["row 0, score 1.00"]


def test_the_best_item_is_named_of_equal_ones_the_first_and_without_items_none(pages):
    other = EXAM["passage"].replace("nine", "ten")
    rows = [{"passage": other}, {"passage": EXAM["passage"]}, {"text": EXAM["passage"]}]
    assert found(rows, [EXAM["passage"]], pages) == ["row 1, passage, score 1.00"]
    both = EXAM["passage"] + " " + EXAM["question"]
    assert found([EXAM], [both], pages) == ["row 0, question, score 1.00"]
    for nothing in ([], [{"question": None, "text": ""}], [{"text": "three short words"}]):
        assert found(nothing, ["three short words", ""]) == [None, None]
        assert found(nothing, []) == []


WORDS = st.lists(st.sampled_from("abcdef"), min_size=20, max_size=30)


@given(WORDS, st.lists(st.sampled_from("abcdef"), max_size=60), st.integers(0, 29))
def test_the_score_is_that_of_the_heaviest_window(item, document, copied):
    """The same by trying all windows, and every word of the item; weights from the list."""
    document = document + item[:copied] + document[::-1]
    table = weigh(parts_of("x", {"text": " ".join(item)}), [])
    [name] = BenchmarkItems(table, 0.05).overlaps([" ".join(document)])
    [found] = table.to_pylist()
    own = dict(zip(found["runs"], found["weights"], strict=True))
    of_item, runs = (
        run_hashes(benchmark_items._hashes(words), benchmark_items.RUN).tolist() for words in (item, document)
    )
    windows = [
        set(runs[start : start + benchmark_items.WINDOW * len(item) + 1]) & own.keys() for start in range(len(runs))
    ]
    weights = [sum(own[run] for run in window) for window in windows]
    scores = {0.0}
    for window, weight in zip(windows, weights, strict=True):
        if weight > max(weights) - 1e-4:
            is_in = [any(run in window for run in of_item[max(0, place - 3) : place + 1]) for place in range(len(item))]
            share = sum(of for of, held in zip(found["word_weights"], is_in, strict=True) if held)
            scores.add(min(share / sum(found["word_weights"]), sum(is_in) / len(item)))
    if any(document[place : place + len(item)] == item for place in range(len(document))):
        scores = {1.0}
    everywhere = sum(own[run] for run in own.keys() & set(runs)) / sum(own.values())
    score = 0.0 if name is None else float(name.split()[-1])
    assert any(score == pytest.approx(one, abs=0.006) for one in scores) or (not score and everywhere < 0.06)
