"""Filter texts by datatrove's own classes: Gopher's, C4's and FineWeb's rules, lists of URLs, personal data.

Each kind of `FilterSettings` is one of these classes; a text is kept, dropped with a reason, or changed as the class
does it. Source: https://github.com/huggingface/datatrove, of the authors of FineWeb.
"""

import inspect
import os
import re
import threading
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.quality.fasttext import load_fasttext, predict
from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.models.words import (
    RememberedWords,
    certainly_repeats_little,
    is_certainly_good,
    make_faster,
)

CLASSES = {
    "gopher_quality": ("filters", "GopherQualityFilter"),
    "gopher_repetition": ("filters", "GopherRepetitionFilter"),
    "c4_quality": ("filters", "C4QualityFilter"),
    "c4_paragraphs": ("filters", "C4ParagraphFilter"),
    "fineweb_quality": ("filters", "FineWebQualityFilter"),
    "url": ("filters", "URLFilter"),
    "regex": ("filters", "RegexFilter"),
    "language": ("filters", "LanguageFilter"),
    "pii": ("formatters", "PIIFormatter"),
    "symbol_lines": ("formatters", "SymbolLinesFormatter"),
}
"""The class of each kind, and its place in `datatrove.pipeline`."""

NOT_OPTIONS = frozenset({"self", "exclusion_writer", "batch_size", "backend", "label_only", "keep_top_pairs_threshold"})
"""Arguments of the classes that have no meaning here."""

REGEX_SECONDS = 10.0
"""Most time that a regular expression has for a text: one that tries every way to match may never end."""
LITERAL_BRACE = re.compile(r"\\.|\{(?!\d*,?\d*\})", re.DOTALL)
"""What is escaped, or a brace that repeats nothing, in which `regex` would read how much a match may differ."""

NEEDED = "pip install '.[filters]' in a checkout, or the packages of the extra `filters` in pyproject.toml"


_one_at_a_time = threading.Lock()
"""All classes share datatrove's word tokenizer, which is spaCy's and fails if two threads use it."""


class FilterError(ModelError):
    """A filter cannot be loaded."""


class Outcome(NamedTuple):
    """What became of a text: as it was, changed, or dropped for a reason."""

    text: str
    dropped: str | None = None


Filter = Callable[[str, str | None], Outcome]
"""Takes a text and its URL."""


def load_filters(settings: Sequence[FilterSettings]) -> Filter:
    """Return one function that applies the filters in their order, up to the first that drops a text.

    Raises
    ------
    FilterError
        If datatrove or what one of its classes needs is not installed.
    SettingsError
        If a class has no such option, or refuses its value.
    """
    with _one_at_a_time:
        steps = [_load(one) for one in settings]

    def apply(text: str, url: str | None) -> Outcome:
        with _one_at_a_time:
            for step in steps:
                outcome = step(text, url)
                if outcome.dropped is not None:
                    return outcome
                text = outcome.text
        return Outcome(text)

    return apply


def _module(name: str) -> Any:  # noqa: ANN401
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")
    try:
        return import_module(name)
    except ImportError as error:
        raise FilterError(f"ingest.filters needs datatrove, received {error}: {NEEDED}") from error


def _load(settings: FilterSettings) -> Filter:
    place, name = CLASSES[settings.kind]
    kind = getattr(_module(f"datatrove.pipeline.{place}"), name)
    options = dict(settings.options)
    known = [option for option in inspect.signature(kind.__init__).parameters if option not in NOT_OPTIONS]
    if settings.kind == "language":
        known.append("model")
    if unknown := sorted(set(options).difference(known)):
        raise SettingsError(
            f"ingest.filters: {settings.kind} has no option {unknown[0]!r}: use one of {', '.join(known)}"
        )
    model = options.pop("model", None)
    if settings.kind == "language" and model is None:
        raise SettingsError(
            "ingest.filters: language needs the option `model`, a fastText model of languages such as lid.176.bin, "
            "received none: name its file"
        )
    words = None
    try:
        if settings.kind == "language":
            step = object.__new__(kind)  # datatrove asks for another build of fastText; the model is loaded by ours
            step.__init__(**options)
        else:
            step = kind(**options)
            if isinstance(language := getattr(step, "language", None), str):
                words = make_faster(language)
        step.stat_update = lambda *_, **__: None  # of every line
        return _adapted(settings.kind, step, model, words)
    except ImportError as error:
        raise FilterError(f"ingest.filters: {settings.kind} cannot be loaded: {error}: {NEEDED}") from error
    except (TypeError, ValueError, re.error) as error:
        raise SettingsError(f"ingest.filters: {settings.kind} refuses {options}: {error}: mend the options") from error


def _adapted(kind: str, step: Any, model: Any, words: RememberedWords | None) -> Filter:  # noqa: ANN401 - of datatrove
    document_of = _module("datatrove.data").Document
    if hasattr(step, "format"):
        emails = getattr(step, "remove_emails", False)

        def formatted(text: str, _: str | None) -> Outcome:
            if kind == "pii":  # its replacements take turns, and begin with the first: no text depends on others
                step.emails_replacer._replace_i = step.ip_replacer._replace_i = 0
                step.remove_emails = emails and "@" in text
            return Outcome(step.format(text))

        return formatted
    if kind == "language":
        step.model._model = _Languages(str(model))  # it would download one
    if kind == "url":  # the list of public suffixes in the package; the latest would be asked for at every start
        step.tldextractor = _module("tldextract").TLDExtract(suffix_list_urls=())

    if kind == "regex":
        step.regex = _limited(step.regex)
    quick = _quick(kind, step, words)

    def apply(text: str, url: str | None) -> Outcome:
        if kind == "url" and not url:
            return Outcome(text)  # its rules have nothing to say
        document = document_of(text=text, id="", metadata={"url": url})
        try:
            result = quick(document) or step.filter(document)
        except TimeoutError:
            return Outcome(text, f"{kind}: too_slow")
        kept, reason = result if isinstance(result, tuple) else (result, None)
        return Outcome(document.text, None if kept else f"{kind}: {reason}" if reason else kind)

    apply("A text of a few words, by which what the class needs is loaded.", "https://example.org/")
    return apply


def _quick(kind: str, step: Any, words: RememberedWords | None) -> Callable[[Any], Any]:  # noqa: ANN401 - of datatrove
    """Return the function that decides on most documents as the class does, sooner, and on others nothing."""
    if kind == "gopher_repetition" and words:
        part = copy(step)
        part.top_n_grams = part.dup_n_grams = ()
        return lambda document: part.filter(document) is True and certainly_repeats_little(words, step, document.text)
    if kind == "gopher_quality" and words:
        return lambda document: is_certainly_good(words, step, document.text)
    if kind == "c4_quality" and step.split_paragraph:
        part = copy(step)
        part.min_num_sentences = -1

        def by_lines(document: Any) -> Any:  # noqa: ANN401 - of datatrove
            text = document.text
            result = part.filter(document)  # each line that it keeps has a sentence
            if result is True and document.text.count("\n") + bool(document.text) < step.min_num_sentences:
                document.text = text
                return None
            return result

        return by_lines
    return lambda _: None


def _limited(pattern: re.Pattern[str]) -> SimpleNamespace:
    """Return a pattern whose `search` raises TimeoutError, which Python's own never does."""
    import regex

    escaped = LITERAL_BRACE.sub(lambda found: r"\{" if found[0] == "{" else found[0], pattern.pattern)
    try:
        return SimpleNamespace(search=partial(regex.compile(escaped).search, timeout=REGEX_SECONDS))
    except regex.error as error:  # a set that begins as POSIX names one
        raise ValueError(f"{pattern.pattern!r}: {error}") from error


class _Languages:
    """A fastText model with the method that datatrove calls; the texts are read as the scorer `fasttext` reads them.

    So a decision may differ from datatrove's for a text with `</s>`, `__label__` or Unicode's other white space.
    """

    def __init__(self, path: str) -> None:
        self._path, self._model = path, load_fasttext(path)

    def predict(self, text: str, k: int) -> tuple[list[str], Any]:
        del k  # datatrove's is always that of all labels
        [labels], [probabilities] = predict(self._model, [text], self._path)
        return (labels, probabilities) if labels else (["__label__"], np.zeros(1))  # it may know no word of the text
