"""datatrove's filters: every decision and every changed text is that of the class itself."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.documents import DocumentFilter, conform
from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.filters import CLASSES, FilterError, load_filters
from fineweb_mask.models.quality.fasttext import train_in_new_process
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.tasks.processes.texts import text_filter

pytestmark = pytest.mark.filterwarnings("ignore:The 'registered_domain' property:DeprecationWarning")
datatrove = pytest.importorskip("datatrove.pipeline.filters")
KINDS = sorted(set(CLASSES) - {"regex", "language"})


def settings(kind, **options):
    return [FilterSettings(kind=kind, options=options)]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_real_pages_are_decided_on_as_the_class_decides(kind, real_data):
    from datatrove.data import Document
    from datatrove.pipeline import formatters
    from tldextract import TLDExtract

    (place, name), reasons = CLASSES[kind], []
    step = getattr(datatrove, name)() if place == "filters" else SimpleNamespace()
    step.tldextractor = TLDExtract(suffix_list_urls=())
    table, ours = pq.read_table(real_data / "web_mix.parquet", columns=["text", "url"]), load_filters(settings(kind))
    for page in table.take(list(range(0, table.num_rows, table.num_rows // 20))).to_pylist():
        document, result = Document(text=page["text"], id="", metadata={"url": page["url"]}), True
        if place == "formatters":
            document.text = getattr(formatters, name)().format(page["text"])  # replacements take turns
        elif kind != "url" or page["url"]:
            result = step.filter(document)
        found = ours(page["text"], page["url"])
        reasons.append(found.dropped)
        assert found.dropped == (None if result is True else f"{kind}: {result[1]}")
        assert found.dropped or found.text == document.text
    if kind in {"c4_quality", "fineweb_quality", "gopher_quality"}:
        assert 0 < reasons.count(None) < len(reasons)


FRAGMENTS = "the |and that |cat. |# |... |…\n|\n|\n\n|- |•|Ünï |漢字|12 |a| |[1]|IS_ALPHA |It is so! Is it? ".split("|")
FRAGMENTS += ["javascript ", "{", "lorem ipsum", "\x1c", "\u2028", "terms of use "]
TEXTS = st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.integers(1, 12)), max_size=30).map(
    lambda parts: "".join(part * times for part, times in parts)
)


def choices(**options):
    return st.fixed_dictionaries({name: st.sampled_from(values) for name, values in options.items()})


OPTIONS = {
    "gopher_repetition": choices(
        dup_line_frac=[0.3, None],
        **{f"dup_{of}": [None] for of in ("para_frac", "line_char_frac", "para_char_frac")},
        top_n_grams=[((2, 0.2), (3, 0.18)), ((4, 0.5), (1, 0.3)), ()],
        dup_n_grams=[((5, 0.15), (10, 0.1)), ((2, 0.6), (1, 0.9)), ()],
    ),
    "gopher_quality": choices(
        min_doc_words=[1, 5],
        max_doc_words=[20, None],
        min_avg_word_length=[2, None],
        max_avg_word_length=[4, None],
        max_symbol_word_ratio=[0.1, 0.5, None],
        **{f"max_{of}_lines_ratio": [0.4, None] for of in ("bullet", "ellipsis")},
        max_non_alpha_words_ratio=[0.8, 0.2, None],
        min_stop_words=[1, 2, None],
    ),
    "c4_quality": choices(
        split_paragraph=[False, True],
        min_num_sentences=[-1, 0, 1, 3, 5],
        min_words_per_line=[-1, 3],
        **{f"filter_{of}": [False, True] for of in ("no_terminal_punct", "curly_bracket", "lorem_ipsum")},
    ),
    "fineweb_quality": choices(),
}


@pytest.mark.parametrize("kind", OPTIONS)
@given(data=st.data())
def test_any_text_is_decided_on_as_the_class_decides(kind, data):
    from datatrove.data import Document

    options, text = data.draw(OPTIONS[kind]), data.draw(TEXTS | st.text(max_size=60))
    document = Document(text=text, id="", metadata={})
    ours = load_filters([FilterSettings.model_construct(kind=kind, options=options)])  # pairs are no settings
    try:
        result = getattr(datatrove, CLASSES[kind][1])(**options).filter(document)
    except ZeroDivisionError:  # of a text of spaces
        with pytest.raises(ZeroDivisionError):
            ours(text, None)
        return
    expected = (document.text, None) if result is True else (text, f"{kind}: {result[1]}")
    found = ours(text, None)
    assert (found.text if found.dropped is None else text, found.dropped) == expected


def test_filters_follow_each_other_and_the_first_that_drops_ends_it():
    steps = ("pii", {}), ("regex", {"regex_exp": "lorem"}), ("gopher_quality", {"min_doc_words": 3})
    apply = load_filters([FilterSettings(kind=kind, options=options) for kind, options in steps])
    text, reason = apply("Write to me@mail.example.org if the cat is with you and that dog.", None)
    assert reason is None
    assert "me@mail.example.org" not in text
    assert apply("lorem", None).dropped == "regex"
    assert apply("two words", None).dropped == "gopher_quality: gopher_short_doc"


def test_a_text_that_a_regular_expression_never_ends_with_is_dropped(monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.filters.REGEX_SECONDS", 0.1)
    apply = load_filters(settings("regex", regex_exp="(a|aa)+$"))
    assert apply("a" * 60 + "!", None).dropped == "regex: too_slow"
    assert apply("b" * 60 + "!", None).dropped is None
    assert apply("a" * 60, None).dropped == "regex"


@pytest.mark.parametrize("pattern", ["user/{id}", "a{3}", "a{}", "a{,1}$", r"\\{", "[{]", "^a{2"])
def test_a_regular_expression_means_what_it_means_in_python(pattern):
    apply = load_filters(settings("regex", regex_exp=pattern))
    for text in ("user/", "user/{id}", "user/{e}", "aaa", "aa", "a{}", "a{2", "\\{", "[{", "uuser/{id"):
        assert (apply(text, None).dropped == "regex") == bool(re.search(pattern, text))


def test_a_changed_text_is_what_is_hashed_counted_and_kept_and_its_token_count_is_forgotten():
    ingest = IngestSettings(min_chars=10, filters=settings("c4_quality", min_num_sentences=-1))
    documents = DocumentFilter(ingest, "a.parquet", None, text_filter(ingest.filters, rows=1))
    prose = "This is a sentence of some words."
    texts = [prose, f"{prose}\nmenu", "menu home", f"{prose} And more.", f"{prose} Or less.\nmenu"]
    kept = documents.apply(conform(pa.record_batch({"text": texts, "token_count": [7, 9, 2, 9, 9]}), {}, []))
    assert kept["text"].to_pylist() == [prose, texts[3], f"{prose} Or less."]
    assert kept["source_row"].to_pylist() == [0, 3, 4]
    assert kept["token_count"].to_pylist() == [7, 9, None]
    assert documents.tokens_estimated == 1
    assert {reason: count for reason, count in documents.dropped.items() if count} == {"duplicate": 1, "too_short": 1}
    assert documents.rows_in == documents.rows_kept + sum(documents.dropped.values())


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("gopher_quality", {"min_words": 3}, "gopher_quality has no option 'min_words': use one of min_doc_words"),
        ("regex", {"regex_exp": "[[:x:]]"}, "regex refuses .*: mend the options"),
        ("language", {"languages": ["en"]}, "language needs the option `model`, a fastText model of languages"),
    ],
)
def test_wrong_options_and_what_is_not_installed_are_named(kind, options, message, monkeypatch):
    with pytest.raises(SettingsError, match=message):
        load_filters(settings(kind, **options))
    monkeypatch.setitem(sys.modules, "datatrove.pipeline.filters", None)
    with pytest.raises(FilterError, match=r"ingest.filters needs datatrove, .*: pip install '\.\[filters\]'"):
        load_filters(settings("gopher_quality"))


@pytest.fixture(scope="module")
def languages(tmp_path_factory):
    """A model of two languages."""
    texts, model = (str(tmp_path_factory.mktemp("languages") / name) for name in ("texts.txt", "languages.bin"))
    lines = {"en": "the cat and the dog are in the house", "de": "die Katze und der Hund sind in dem Haus"}
    Path(texts).write_text("".join(f"__label__{name} {text}\n" for name, text in lines.items()) * 50)
    options = {"epoch": 20, "lr": 0.1, "dim": 8, "wordNgrams": 1, "bucket": 100, "minCount": 1, "seed": 0}
    train_in_new_process(texts, model, options)
    return model


@pytest.mark.parametrize("begin", ["{}", "<s>[INST]\n</s>{}", "__label__de {}", "\u2028</s>\u0085{}", "\ud800 {}"])
def test_languages_are_those_of_a_model_of_one_s_own_whatever_stands_in_a_page(languages, begin):
    apply = load_filters(settings("language", model=languages, languages=["en"]))
    en, de = "the cat and the dog are in the house " * 3, "die Katze und der Hund sind in dem Haus " * 3
    assert apply(begin.format(en), None) == (begin.format(en), None)
    assert apply(begin.format(de), None).dropped == "language"
    labelled = " ".join(f"__label__{word}" for word in de.split())
    assert apply(f"the cat {labelled}", None).dropped == "language"  # what the labels hide is read, too


def test_a_damaged_model_of_languages_is_named(languages, tmp_path):
    damaged = tmp_path / "damaged.bin"
    damaged.write_bytes(Path(languages).read_bytes()[:-64] + np.full(16, np.nan, np.float32).tobytes())
    with pytest.raises(ModelError, match=r"damaged\.bin is damaged: its numbers give no scores"):
        load_filters(settings("language", model=str(damaged)))
