"""Mix pages into a corpus: topic sizes, kinds per topic, duplicates, damage, spam farms; and the labels.

Choosing by quality alone costs breadth here, as it does on the web. The largest topics are study topics, with most of
the good pages and most of their copies. Rare topics are mainly news and forum threads. Spam farms wrap good
paragraphs, so a classifier rates their pages high although they are much alike.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from generator import damage, pages
from generator.grammar import LISTS, Page
from generator.topics import Topic, load_topics

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCUMENTS = 6480
SHARDS = (
    ("CC-MAIN-2023-50_00000", "CC-MAIN-2023-50", 0.22),
    ("CC-MAIN-2024-10_00000", "CC-MAIN-2024-10", 0.29),
    ("CC-MAIN-2024-10_00001", "CC-MAIN-2024-10", 0.27),
    ("CC-MAIN-2024-30_00000", "CC-MAIN-2024-30", 0.22),
)
CRAWLED = {"CC-MAIN-2023-50": (2023, 12), "CC-MAIN-2024-10": (2024, 3), "CC-MAIN-2024-30": (2024, 7)}

# Share of each kind among a topic's original pages, by tier.
KINDS = {
    "study": {"reference": 27, "tutorial": 18, "essay": 9, "news": 6, "forum": 10, "blog": 5, "listing": 4,
              "marketing": 4, "boilerplate": 4, "keyword_spam": 4, "scraped_spam": 11},
    "commerce": {"reference": 3, "tutorial": 7, "essay": 2, "news": 8, "forum": 14, "blog": 13, "listing": 22,
                 "marketing": 11, "boilerplate": 6, "keyword_spam": 14, "scraped_spam": 3},
    "practical": {"reference": 9, "tutorial": 14, "essay": 6, "news": 10, "forum": 21, "blog": 15,
                  "listing": 9, "marketing": 5, "boilerplate": 4, "keyword_spam": 6, "scraped_spam": 5},
    "local": {"reference": 6, "tutorial": 7, "essay": 6, "news": 33, "forum": 21, "blog": 15, "listing": 4,
              "marketing": 3, "boilerplate": 4, "keyword_spam": 3, "scraped_spam": 2},
}  # fmt: skip
# Chances of grade 0, 1 and 2, by tier.
GRADES = {"study": (1, 3, 6), "commerce": (4, 4, 2), "practical": (2, 5, 3), "local": (2, 5, 3)}
NEAR_DUPLICATES = {"study": 0.21, "commerce": 0.14, "practical": 0.05, "local": 0.03}
EXACT_DUPLICATES = 0.025
OTHER_LANGUAGE = 0.04
SPAM_KINDS = ("keyword_spam", "scraped_spam")

LABELS = {
    "reference": 430, "tutorial": 390, "essay": 200, "news": 300, "forum": 400, "blog": 270, "listing": 200,
    "marketing": 160, "boilerplate": 120, "keyword_spam": 150, "scraped_spam": 60,
}  # fmt: skip
# The score an annotator would give to grade 0, 1 and 2 of each kind.
SCORES = {
    "reference": (2, 4, 5), "tutorial": (1, 3, 5), "essay": (2, 3, 4), "news": (2, 2, 3), "forum": (1, 2, 4),
    "blog": (1, 2, 3), "listing": (0, 1, 2), "marketing": (1, 1, 2), "boilerplate": (0, 0, 0),
    "keyword_spam": (0, 0, 0), "scraped_spam": (1, 1, 1),
}  # fmt: skip


@dataclass
class Document:
    """One page with all that is known about it; `near` and `exact` are the pages it was copied from."""

    topic: str
    kind: str
    grade: int
    text: str | None
    language: str = "en"
    near: Document | None = None
    exact: Document | None = None
    truncated: bool = False
    broken: bool = False
    farm: str | None = None
    copies: int = field(default=0, repr=False)


def topic_sizes(topics: list[Topic], total: int) -> list[int]:
    """Return a Zipf-Mandelbrot number of pages per topic, from several hundred down to nine."""
    weights = [(rank + 20.0) ** -3.8 for rank in range(1, len(topics) + 1)]
    sizes = [max(9, round(total * weight / sum(weights))) for weight in weights]
    sizes[0] += total - sum(sizes)
    return sizes


def original(
    topic: Topic,
    kind: str,
    grade: int,
    rng: random.Random,
    *,
    good: list[Document],
    farms: list[dict[str, Any]],
) -> Document:
    """Write one page that is not a copy; a farm's page needs a good page to take from."""
    page = Page(topic, rng)
    if kind == "scraped_spam":
        farm = rng.choice(farms)
        text = pages.scraped_spam(page, rng.choice(good).text or "", farm)
        return Document(topic.name, kind, grade, text, farm=farm["domain"])
    text = pages.BUILDERS[kind](page, grade, pages.length(rng, kind))
    chance = {"boilerplate": 0.0, "listing": 0.4, "keyword_spam": 0.0}.get(kind, 0.2)
    return Document(topic.name, kind, grade, pages.surround(page, text) if rng.random() < chance else text)


def copy_weight(document: Document) -> float:
    """How likely a page is to be copied: good pages most, and those copied before more than others."""
    base = {"reference": 3.0, "tutorial": 2.5, "essay": 1.2, "news": 1.5, "listing": 1.5, "scraped_spam": 2.0}
    weight = base.get(document.kind, 0.3)
    if document.kind in ("reference", "tutorial"):
        weight *= (0.1, 1.0, 2.0)[document.grade]
    return weight * (1.0 + 2.0 * document.copies)


def topic_documents(topic: Topic, size: int, rng: random.Random) -> list[Document]:
    """Write all pages of one topic: originals, then copies of them."""
    near = round(size * NEAR_DUPLICATES[topic.tier])
    exact = round(size * EXACT_DUPLICATES)
    kinds = KINDS[topic.tier]
    drawn = rng.choices(list(kinds), list(kinds.values()), k=size - near - exact)
    drawn.sort(key=lambda kind: kind == "scraped_spam")
    out: list[Document] = []
    good: list[Document] = []
    for kind in drawn:
        if kind == "scraped_spam" and not good:
            kind = "keyword_spam"  # noqa: PLW2901 - nothing to scrape in this topic
        grade = rng.choices((0, 1, 2), GRADES[topic.tier])[0]
        document = original(topic, kind, grade, rng, good=good, farms=pages.FARMS["corpus"])
        if kind in SPAM_KINDS:
            document.text = f"{document.text}\n{pages.network_links(kind.removesuffix('_spam'))}"
        if kind in ("reference", "tutorial", "essay") and grade:
            good.append(document)
        out.append(document)
    originals = list(out)
    for _ in range(near):
        source = rng.choices(originals, [copy_weight(document) for document in originals])[0]
        source.copies += 1
        text = damage.edited_copy(Page(topic, rng), source.text or "", rng.uniform(0.15, 0.55))
        out.append(Document(topic.name, source.kind, source.grade, text, near=source, farm=source.farm))
    for source in rng.choices(originals, k=exact):
        source.copies += 1
        text = damage.same_but_for_form(rng, source.text or "")
        out.append(Document(topic.name, source.kind, source.grade, text, exact=source, farm=source.farm))
    return out


def add_languages(documents: list[Document], topics: dict[str, Topic], rng: random.Random) -> None:
    """Rewrite some uncopied pages in another language; a few keep the wrong language label."""
    wanted = round(len(documents) * OTHER_LANGUAGE)
    by_topic = {code: set(names) for code, names in pages.language_topics().items()}
    free = [d for d in documents if not d.copies and not d.near and not d.exact and d.kind not in SPAM_KINDS]
    rng.shuffle(free)
    for document in free:
        codes = sorted(code for code, names in by_topic.items() if document.topic in names)
        if wanted and codes and rng.random() < 0.45:
            document.language = rng.choice(codes)
            page = Page(topics[document.topic], rng)
            document.text = pages.other_language(page, document.language, int(40 * rng.lognormvariate(1.0, 0.6)))
            document.kind, document.grade = "other_language", 1
            wanted -= 1


def add_damage(documents: list[Document], rng: random.Random) -> None:
    """Truncate, break and empty some pages that no other page was copied from."""
    for document in documents:
        if document.copies or document.exact or document.near or not document.text:
            continue
        chance = rng.random()
        if chance < 0.05 and len(document.text) > 300:
            document.truncated = True
            document.text = damage.truncated(rng, document.text)
        elif chance < 0.105:
            document.broken = True
            document.text = damage.broken(rng, document.text)
        elif chance < 0.119:
            document.kind, document.grade = "empty", 0
            document.text = rng.choice([None, "", "   \n\t ", "Loading...", "OK", "404", "\n\n", "Untitled page"])


def domains(topics: Iterable[Topic], rng: random.Random) -> dict[str, list[str]]:
    """Return a list of reserved-name web sites per topic; large topics have more."""
    endings = LISTS["site_words"].split()
    sites: dict[str, list[str]] = {}
    for rank, topic in enumerate(topics):
        stem = topic.name.replace("_", "")
        words = [thing.split(" ")[-1].lower() for thing in topic.things if thing.isascii()]
        count = max(4, 16 - rank // 3)
        names = {
            rng.choice([f"{rng.choice(words)}{rng.choice(endings)}", f"{stem}-{rng.choice(endings)}",
                        f"the{rng.choice(words)}", f"{rng.choice(words)}and{rng.choice(words)}"])
            for _ in range(count)
        }  # fmt: skip
        sites[topic.name] = [f"{rng.choice(['www.', ''])}{n}.{rng.choice(['example', 'test'])}" for n in sorted(names)]
    return sites


def slug(text: str | None, rng: random.Random) -> str:
    """Return a path made of a page's first words."""
    words = [w for w in (text or "").split("\n", 1)[0].lower().split() if w.isascii() and w.isalnum()][:7]
    return "-".join(words) or f"page-{rng.randint(10, 99999)}"


def language_label(document: Document, rng: random.Random) -> tuple[str, float]:
    """Return what a language identifier would say, with its score."""
    if document.kind == "other_language" and rng.random() < 0.08:
        return "en", rng.uniform(0.35, 0.66)
    if not document.text or len(document.text.split()) < 4:
        return "en", rng.uniform(0.1, 0.5)
    if document.language == "en" and rng.random() < 0.003:
        return rng.choice(["fr", "de", "es"]), rng.uniform(0.3, 0.55)
    low, high = {
        "listing": (0.66, 0.92), "keyword_spam": (0.65, 0.94), "boilerplate": (0.55, 0.9),
        "other_language": (0.88, 0.995),
    }.get(document.kind, (0.84, 0.985))  # fmt: skip
    if document.broken:
        low, high = low - 0.25, high - 0.1
    return document.language, rng.triangular(low, high, low + 0.8 * (high - low))


def count_tokens(text: str | None) -> int:
    """Estimate the number of GPT-2 tokens: 1.3 per word, or one per six bytes if that is more."""
    if not text:
        return 0
    return max(round(1.3 * len(text.split())), len(text.encode()) // 6)


def shard_rows(
    documents: list[Document], rng: random.Random, topics: list[Topic]
) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Spread the documents over the shards; return rows of the corpus and of the truth, shard by shard."""
    rng.shuffle(documents)
    ids = {id(d): f"<urn:uuid:{uuid.UUID(int=rng.getrandbits(128), version=4)}>" for d in documents}
    sites = domains(topics, rng)
    out, start, seen = [], 0, 0.0
    for name, dump, share in SHARDS:
        seen += share
        end = len(documents) if name == SHARDS[-1][0] else round(len(documents) * seen)
        corpus, truth = [], []
        for row, document in enumerate(documents[start:end]):
            identity = None if not document.copies and rng.random() < 0.026 else ids[id(document)]
            corpus.append(corpus_row(document, identity, dump, sites[document.topic], rng))
            truth.append(
                {
                    "shard": name, "row": row, "id": identity, "topic": document.topic, "kind": document.kind,
                    "grade": document.grade, "language": document.language,
                    "near_duplicate_of": ids[id(document.near)] if document.near else None,
                    "exact_duplicate_of": ids[id(document.exact)] if document.exact else None,
                    "truncated": document.truncated, "broken": document.broken,
                    "is_spam": document.kind in SPAM_KINDS,
                }
            )  # fmt: skip
        out.append((corpus, truth))
        start = end
    return out


def corpus_row(
    document: Document, identity: str | None, dump: str, sites: list[str], rng: random.Random
) -> dict[str, Any]:
    """Return one row with the nine FineWeb columns."""
    year, month = CRAWLED[dump]
    day, hour, minute, second = rng.randint(1, 12), rng.randint(0, 23), rng.randint(0, 59), rng.randint(0, 59)
    if document.kind == "scraped_spam":
        site = f"{document.farm}-{rng.randint(1, 40)}.example"
    elif document.kind == "keyword_spam":
        stem = document.topic.replace("_", "-")
        site = f"{rng.choice(['best', 'cheap', 'top', 'deal'])}-{stem}-{rng.randint(1, 30)}.test"
    else:
        site = rng.choice(sites)
    scheme = rng.choice(["https", "https", "https", "http"])
    folder = rng.choice(["", "", "blog/", "articles/", f"{year - 1}/{month:02d}/"])
    url = f"{scheme}://{site}/{folder}{slug(document.text, rng)}"
    segment = 1_700_000_000 + rng.randint(0, 900) * 7_919
    stamp = f"{year}{month:02d}{day:02d}{hour:02d}{minute:02d}{second:02d}"
    language, score = language_label(document, rng)
    return {
        "text": document.text,
        "id": identity,
        "dump": dump,
        "url": None if rng.random() < 0.01 else url,
        "date": f"{year}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}Z",
        "file_path": f"s3://commoncrawl/crawl-data/{dump}/segments/{segment}.{rng.randint(10, 99)}/warc/"
        f"CC-MAIN-{stamp}-{rng.randint(0, 899):05d}.warc.gz",
        "language": language,
        "language_score": round(score, 6),
        "token_count": count_tokens(document.text),
    }


def make_corpus(seed: int) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return the corpus and truth rows of every shard."""
    topics = load_topics()
    documents: list[Document] = []
    for topic, size in zip(topics, topic_sizes(topics, DOCUMENTS), strict=True):
        documents += topic_documents(topic, size, random.Random(f"{seed} {topic.name}"))
    rng = random.Random(f"{seed} corpus")
    add_languages(documents, {topic.name: topic for topic in topics}, rng)
    add_damage(documents, rng)
    return shard_rows(documents, rng, topics)


def make_labels(seed: int) -> list[dict[str, Any]]:
    """Return labelled texts, written apart from the corpus, with the noise of a human or model annotator."""
    rng = random.Random(f"{seed} labels")
    topics = load_topics()
    weights = [size**0.5 for size in topic_sizes(topics, DOCUMENTS)]
    out = []
    for kind, count in LABELS.items():
        for _ in range(count):
            topic = rng.choices(topics, weights)[0]
            grade = rng.choices((0, 1, 2), (3, 4, 4))[0]
            good = [original(topic, "reference", 1, rng, good=[], farms=[])] if kind == "scraped_spam" else []
            document = original(topic, kind, grade, rng, good=good, farms=pages.FARMS["labels"])
            score = SCORES[kind][grade]
            chance = rng.random()
            if chance < 0.2:
                score += rng.choice([-1, 1])
            elif chance < 0.23:
                score = rng.randint(0, 5)
            out.append({"text": document.text, "score": min(5, max(0, score)), "kind": kind, "topic": topic.name})
    rng.shuffle(out)
    return out
