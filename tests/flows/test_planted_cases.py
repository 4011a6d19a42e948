"""What ingest and deduplication make of a corpus with planted copies and benchmark items, from its files on."""

import random
from collections import Counter
from itertools import combinations
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import prepare
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.tasks.workspace.stage_parquet import read_duplicates
from tests.corpora import KINDS, draw, mixed, prose, shingles
from tests.flows.pipeline.run_here import RunHere, recipe_of

ITEMS = {"long": 20, "short": 3}
"""Words of planted benchmark items, which also have three rare ones: a short item of common words is not looked for."""
THRESHOLD = 0.7


class Fate(NamedTuple):
    """What became of a text: why it was dropped, and for a near-duplicate, the text that is kept for it."""

    reason: str | None
    twin: str | None = None


class Planted(NamedTuple):
    """Texts in files, what was planted as what, and what became of each."""

    mixed: Any
    kinds: dict[str, str]  # by text, of those that were planted
    fates: dict[str, list[Fate]]  # by text; copies with other white space are the same text


def rare(dice):
    return "".join(dice.choices("bdfgklmnprstuvwz", k=9))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    pytest.importorskip("rensa")
    folder, dice = tmp_path_factory.mktemp("planted"), random.Random(0)
    corpus = mixed(each=40, copies=10)
    items = {
        name: [f"{draw(dice, words)} {rare(dice)} {rare(dice)} {rare(dice)}" for _ in range(20)]
        for name, words in ITEMS.items()
    }
    kinds = {
        f"{prose(dice, 120)}\n\n{item}\n\n{prose(dice, 120)}": name for name, some in items.items() for item in some
    }
    kinds |= {prose(dice): "clean" for _ in range(60)}
    copies = ["  ".join(text.split(" ")) for text, kind in kinds.items() if kind == "clean"][:30]
    texts = [*corpus.texts, *kinds, *copies]
    dice.shuffle(texts)
    files = {"a": texts[::2], "b": texts[1::2]}
    (folder / "corpus").mkdir()
    for name, some in files.items():
        pq.write_table(pa.table({"text": some}), folder / "corpus" / f"{name}.parquet")
    pq.write_table(pa.table({"text": [item for some in items.values() for item in some]}), folder / "items.parquet")
    return Planted(corpus, kinds, fates_of(folder, files))


def fates_of(folder, files):
    """Run a recipe as far as its duplicates, and return what became of every text."""
    ingest = {"near_dedup": THRESHOLD, "decontaminate": [str(folder / "items.parquet")], "keep_dropped": True}
    usual = {"min_chars": IngestSettings().min_chars}
    other = {"quality": {"scorers": []}, "selection": {"solver": "mean_field"}}
    settings = recipe_of(folder / "workspace", folder / "corpus", ingest=usual | ingest, **other)
    run = RunHere(settings)
    shards = prepare(run).shards
    rows = {}
    fates = {(name, row): Fate(None) for name, texts in files.items() for row in range(len(texts))}
    for shard in shards:
        path = run.workspace.resolve(shard.documents)
        rows[shard.name] = pq.read_table(path)["source_row"].to_pylist()
        dropped = pq.read_table(run.workspace.root / shard.documents.path.replace("documents/", "dropped/", 1))
        fates |= {(shard.name, one["source_row"]): Fate(one["reason"]) for one in dropped.to_pylist()}
    for shard in shards:
        for one in read_duplicates(run.workspace, shard.duplicates).to_pylist():
            other = one["twin_shard"]
            is_near = one["reason"] == "near_duplicate"
            fate = Fate("near", files[other][rows[other][one["twin_row"]]]) if is_near else Fate(one["reason"])
            fates[shard.name, rows[shard.name][one["row"]]] = fate
    found: dict[str, list[Fate]] = {}
    for (name, row), fate in fates.items():
        found.setdefault(plain(files[name][row]), []).append(fate)
    return found


def plain(text):
    return text.replace("  ", " ")


@pytest.mark.long
def test_near_duplicates_are_those_pairs_that_are_as_alike_as_asked(planted):
    """Of all pairs of texts of every kind, compared exactly: some that are a little more alike than that are missed."""
    texts = planted.mixed.texts
    runs = [shingles(text) for text in texts]
    alike = {
        (one, other): share
        for one, other in combinations(range(len(texts)), 2)
        if (share := len(runs[one] & runs[other]) / max(1, len(runs[one] | runs[other]))) >= THRESHOLD
    }
    reasons = [[fate.reason for fate in planted.fates[plain(text)]] for text in texts]
    found = {pair: any("near" in reasons[place] for place in pair) for pair in alike}
    assert len(alike) >= 60
    assert sum(found.values()) >= 0.9 * len(alike)
    places = {text: place for place, text in enumerate(texts)}
    dropped = [
        (place, places[fate.twin])
        for place, text in enumerate(texts)
        for fate in planted.fates[plain(text)]
        if fate.reason == "near" and fate.twin is not None
    ]
    assert len(dropped) == sum(found.values())
    assert all(tuple(sorted(pair)) in alike for pair in dropped)
    assert all(reasons[twin] == [None] for _, twin in dropped)


def test_of_a_text_and_its_copy_with_other_white_space_one_is_kept_and_clean_texts_stay(planted):
    clean = [planted.fates[text] for text, kind in planted.kinds.items() if kind == "clean"]
    assert Counter(tuple(sorted(str(fate.reason) for fate in fates)) for fates in clean) == {
        ("None", "duplicate"): 30,
        ("None",): 30,
    }


def test_pages_with_a_benchmark_item_are_dropped_and_no_others_and_texts_that_were_not_copied_stay(planted):
    dropped = {text for text, fates in planted.fates.items() if Fate("benchmark") in fates}
    assert dropped == {text for text, kind in planted.kinds.items() if kind in ITEMS}
    copied = {place for pair in planted.mixed.pairs for place in pair}
    for family in [*KINDS, "template"]:
        places = [place for place in planted.mixed.of(family) if place not in copied]
        assert {planted.fates[plain(planted.mixed.texts[place])][0].reason for place in places} == {None}, family
