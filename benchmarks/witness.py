"""Study what selections teach a language model of n-grams: every metric, mix and selector at many weights of quality.

    python -m benchmarks.witness prepare --documents FOLDER --output OUT
    python -m benchmarks.witness study --output OUT --half tuned --budgets 0.05 0.15 0.3
    python -m benchmarks.witness tables --output OUT
    python -m benchmarks.witness speed --tokens 2e6

Corpora and halves are those of benchmarks/objective.py, and `spam`, which is web_mix with the sample's spam: settings
are chosen on one half of the documents and shown on the other. A tenth of a half, by a hash of the text, is held
out before anything is selected; documents like it are in no arm. `elsewhere` is held out, too, and in no corpus:
FineWeb-Edu pages for the web, web pages for posts. Every cell of corpus, half and budget is a file, so a study goes on
where it stopped. The budget is a share of the tokens.
"""

import argparse
import hashlib
import json
import resource
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from benchmarks.command import ROOT
from benchmarks.objective import CORPORA, ELSEWHERE, LEAST_CHARACTERS, _weights
from benchmarks.tables import show
from benchmarks.vectors import embed_and_score
from fineweb_mask.models.analysis.groups import domains
from fineweb_mask.models.analysis.vectors import nearest_cosines
from fineweb_mask.models.selection.block import BlockSolver
from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.witness.kneser_ney import KneserNey
from fineweb_mask.models.witness.tokens import PackedTokens, sharing_documents, train_tokenizer
from fineweb_mask.models.witness.witness import HeldOut, witness
from fineweb_mask.tasks.witness.documents import HELD_OUT_CHARACTERS

HALVES = {"tuned": 0, "kept": 1}
SPAM = "spam"
EDU, PAGES = "fineweb_edu_scored_150", 300
HELD_OUT_SHARE = 0.1
VOCABULARY, TOKENIZER_CHARACTERS = 16_000, 10_000_000
NEAR = 0.9  # cosine of near-duplicates
MIXES = ("pairwise", "facility", "disf", "pairwise+facility", "facility+disf", "pairwise+disf")
LAMBS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
SELECTORS = ("top_quality", "quality_sampling", "semdedup", "kmq", "d4", "ingenious")
BUDGETS = (0.05, 0.15, 0.3)
MIX, OWN, OLDER = "facility+disf", "facility+disf 0.5", "pairwise+facility 0.8"  # the recipes', and what they were
PAPERS = "pairwise 0.5"
PLACES = {
    ("web_mix", "pool"): "web pages",
    ("web_mix", "elsewhere"): "FineWeb-Edu, by web pages",
    ("newsgroups20", "pool"): "20 Newsgroups",
    ("newsgroups20", "elsewhere"): "web pages, by 20 Newsgroups",
    ("fineweb_legal_annotated", "pool"): "FineWeb",
    ("fineweb_legal_annotated", "elsewhere"): "FineWeb-Edu, by FineWeb",
}
"""Held-out sets of the summary: what is predicted, and after which corpus if it is another."""
MARKS = {"better": "*", "worse": "!", "no difference seen": ""}
"""Told from random, for all arms together."""


class Half(NamedTuple):
    """One half of a corpus, and what is held out of it."""

    pool: PackedTokens  # n documents
    features: np.ndarray  # (n, d) float32
    quality: np.ndarray  # (n,) float32
    held_out: dict[str, HeldOut]
    groups: np.ndarray  # (n,) texts
    ranks: np.ndarray  # (n,) uint64: hashes of the texts


def prepare(documents: Path, output: Path) -> None:
    """Embed, score and tokenise both halves of every corpus."""
    output.mkdir(parents=True, exist_ok=True)
    texts_of = {name: pq.read_table(documents / f"{name}.parquet") for name in (*CORPORA, EDU)}
    edu = texts_of[EDU]["text"].to_pylist()
    for name in (*CORPORA, SPAM):
        rows = _rows(
            texts_of["web_mix" if name == SPAM else name], CORPORA.get(name, "origin"), is_web=name != "newsgroups20"
        )
        if name == SPAM:
            rows |= dict.fromkeys(_spam(), (SPAM, None))
        web = [text for text in texts_of["web_mix"]["text"].to_pylist()[:2_800] if text]
        elsewhere = web[:PAGES] if name == "newsgroups20" else [text for text in edu if text not in rows]
        tokenizer = train_tokenizer(_first(list(rows), TOKENIZER_CHARACTERS), VOCABULARY)
        for half, odd in HALVES.items():
            own = [text for text in rows if hashlib.sha256(text.encode()).digest()[0] % 2 == odd]
            features, quality, kept = embed_and_score(own, output / f"{name}-{half}")
            own = [text for text, keep in zip(own, kept, strict=True) if keep]
            tokens = PackedTokens.of(own, tokenizer)
            (starts, sizes), (others, other_sizes) = _starts(own, tokenizer), _starts(elsewhere, tokenizer)
            np.savez(
                output / f"{name}-{half}.npz",
                features=features.astype(np.float32),
                quality=quality,
                ids=tokens.ids,
                ends=tokens.ends,
                start_ids=starts.ids,
                start_ends=starts.ends,
                sizes=sizes,
                groups=np.array([rows[text][0] for text in own]),
                hosts=np.array([rows[text][1] or str(place) for place, text in enumerate(own)]),
                ranks=np.array([_rank(one) for one in own], np.uint64),
                other_ids=others.ids,
                other_ends=others.ends,
                other_sizes=other_sizes,
            )
            print(f"{name} {half}: {len(own):,} documents, {len(tokens.ids):,} tokens", flush=True)


def _starts(texts: list[str], tokenizer) -> tuple[PackedTokens, np.ndarray]:  # noqa: ANN001
    """Return the tokens of the beginning of every text, and its bytes."""
    read = [text[:HELD_OUT_CHARACTERS] for text in texts]
    return PackedTokens.of(read, tokenizer, end=False), np.array([len(text.encode()) for text in read])


def _rows(table, column: str | None, *, is_web: bool) -> dict[str, tuple[str, str | None]]:  # noqa: ANN001
    """Return the group and the host of every different text that is long enough."""
    groups = table[column].to_pylist() if column else ["all"] * len(table)
    hosts = domains(table["url"]).to_pylist() if is_web else [None] * len(table)
    found: dict[str, tuple[str, str | None]] = {}
    for text, group, host in zip(table["text"].to_pylist(), groups, hosts, strict=True):
        if text and len(text) >= LEAST_CHARACTERS and group != ELSEWHERE:
            found.setdefault(text, (str(group), host))
    return found


def _spam() -> list[str]:
    """Return the different spam of the sample."""
    folder = ROOT / "data_samples"
    is_spam = {one["id"] for one in pq.read_table(folder / "truth.parquet").to_pylist() if one["is_spam"]}
    pages = pq.read_table(folder / "corpus", columns=["id", "text"]).to_pylist()
    found = (page["text"] for page in pages if page["id"] in is_spam)
    return list(dict.fromkeys(text for text in found if text and len(text) >= LEAST_CHARACTERS))


def _rank(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _first(texts: list[str], characters: int) -> list[str]:
    order = np.random.default_rng(0).permutation(len(texts))
    ends = np.cumsum([len(texts[place]) for place in order])
    return [texts[place] for place in order[: int(np.searchsorted(ends, characters)) + 1]]


def read(path: Path) -> Half:
    """Hold documents out of a half, and leave out what is like them."""
    with np.load(path) as held:
        arrays = dict(held)
    packed = PackedTokens(arrays["ids"], arrays["ends"])
    starts = PackedTokens(arrays["start_ids"], arrays["start_ends"])
    is_edu = arrays["groups"] == EDU  # a part of the web pages, of which all are held out
    places = np.flatnonzero(~is_edu)
    order = places[np.argsort(arrays["ranks"][places], kind="stable")]
    count = int(HELD_OUT_SHARE * len(order))
    held_out, rest = np.sort(order[:count]), np.sort(order[count:])
    clean = held_out[arrays["groups"][held_out] != SPAM]
    unit = arrays["features"] / np.maximum(np.linalg.norm(arrays["features"], axis=1, keepdims=True), 1e-12)
    pool = packed.take(rest)
    others = PackedTokens(arrays["other_ids"], arrays["other_ends"])
    elsewhere = HeldOut(others, arrays["other_sizes"], np.arange(len(others.ends)))
    if is_edu.any():
        elsewhere = _set(starts, arrays, np.flatnonzero(is_edu))
    near = nearest_cosines(unit[rest], unit[np.concatenate([held_out, np.flatnonzero(is_edu)])]) >= NEAR
    for texts in (starts.take(held_out), elsewhere.tokens):
        near |= sharing_documents(pool, texts)
    kept = np.flatnonzero(~near)
    sets = {"pool": _set(starts, arrays, held_out)}
    if len(clean) < len(held_out):
        sets["clean"] = _set(starts, arrays, clean)
    sets["elsewhere"] = elsewhere
    own = {name: arrays[name][rest][kept] for name in ("features", "quality", "groups", "ranks")}
    return Half(pool=pool.take(kept), held_out=sets, **own)


def _set(starts: PackedTokens, arrays: dict[str, np.ndarray], rows: np.ndarray) -> HeldOut:
    clusters = np.unique(arrays["hosts"][rows], return_inverse=True)[1]
    return HeldOut(starts.take(rows), arrays["sizes"][rows], clusters)


def selections(half: Half, budget: float) -> dict[str, np.ndarray]:
    """Select by every mix at every weight of quality, and by every other selector."""
    common = {"budget_by": "tokens", "select_ratio": budget}
    tokens, found = half.pool.lengths, {}
    longest = SelectionSettings.model_validate(common | {"metrics": "facility"})
    lists = BlockSolver(half.features, half.quality, longest, device="cpu", tokens=tokens).lists
    for mix in MIXES:
        for lamb in LAMBS:
            settings = SelectionSettings.model_validate(common | {"metrics": _weights(mix), "lamb": lamb})
            block = BlockSolver(half.features, half.quality, settings, device="cpu", tokens=tokens)
            block.lists = lists  # the same for every mix
            found[f"{mix} {lamb:g}"] = block.solve().mask.nonzero()[:, 0].numpy()
    for name in SELECTORS:
        settings = SelectionSettings.model_validate(common | {"solver": name})
        also = SelectorInputs(scores={"quality": half.quality})
        found[name] = select(half.features, half.quality, settings, tokens=tokens, also=also).indices
    return found


def study(output: Path, corpora: list[str], halves: list[str], budgets: list[float]) -> None:
    """Measure every cell that is not measured yet."""
    for half_name in halves:
        for budget in budgets:
            for name in corpora:
                path = output / f"{name}-{half_name}-{budget:g}.json"
                if path.exists():
                    continue
                started = time.perf_counter()
                half = read(output / f"{name}-{half_name}.npz")
                chosen = selections(half, budget)
                selected = time.perf_counter() - started
                found = witness(
                    half.pool, chosen, half.held_out, vocabulary=VOCABULARY, quality=half.quality, most_tokens=10**8
                )
                seconds = {"select": selected, "witness": time.perf_counter() - started - selected}
                path.write_text(json.dumps(found | {"seconds": seconds}))
                print(f"{path.stem}: {found['tokens']:,} tokens an arm, {seconds}", flush=True)


def tables(output: Path) -> None:
    """Print what was measured, in percent of random documents' loss; larger is better."""
    cells = {path.stem: json.loads(path.read_text()) for path in sorted(output.glob("*.json"))}
    for cell, found in cells.items():
        for name, measured in found["sets"].items():
            base = float(np.mean(measured["losses"]["random"]))
            percent = {arm: 100 * one["random"]["gain"] for arm, one in measured["against"].items()}
            marks = {arm: MARKS[one["random"]["verdict"]] for arm, one in measured["against"].items()}
            controls = found["lengths"].items()
            lengths = {arm: 100 * measured["against"][arm][control]["gain"] for arm, control in controls}
            lines = []
            for mix in MIXES:
                arms = [f"{mix} {lamb:g}" for lamb in LAMBS]
                lines.append([mix, *(f"{percent[arm]:+.1f}{marks[arm]}" for arm in arms)])
                lines.append(
                    ["beside its lengths", *(f"{lengths[arm]:+.1f}" if arm in lengths else "" for arm in arms)]
                )
            deviation = 100 * float(np.std(measured["losses"]["random"], ddof=1)) / base
            show(
                f"{cell}, {name}: {found['tokens']:,} tokens, n = {measured['documents']}; random {base:.3f} bits per "
                f"byte (deviation {deviation:.2f}%)",
                ["mix", *(f"lamb {lamb:g}" for lamb in LAMBS)],
                lines,
            )
            others = [f"{arm} {percent[arm]:+.1f}{marks[arm]}" for arm in SELECTORS]
            print("; ".join(others))
    _agreement(cells)
    for budget in BUDGETS:
        if all(f"{corpus}-kept-{budget:g}" in cells for corpus, _ in PLACES):
            _summary(cells, budget)


def _summary(cells: dict[str, dict], budget: float) -> None:
    """Print the recipes' selection beside random, random of the same lengths, and top quality, with 95% intervals."""
    columns = {}
    for (corpus, of_set), title in PLACES.items():
        found = cells[f"{corpus}-kept-{budget:g}"]
        measured = found["sets"][of_set]
        base = float(np.mean(measured["losses"]["random"]))

        def told(of: dict[str, float]) -> str:
            return f"{of['gain']:+.1%} ({100 * of['low']:+.1f} to {100 * of['high']:+.1f})"

        columns[title] = {
            "random documents, bits per byte": f"{base:.2f}",
            "**fineweb-mask**": told(measured["against"][OWN]["random"]),
            "beside random documents of its lengths": told(measured["against"][OWN][found["lengths"][OWN]]),
            "top quality": told(measured["against"]["top_quality"]["random"]),
            "mean cosine, the paper's metric": told(measured["against"][PAPERS]["random"]),
            "the recipes before": told(measured["against"][OLDER]["random"]),
        }
    lines = [[row, *(column[row] for column in columns.values())] for row in next(iter(columns.values()))]
    show(f"{budget:.0%} of the tokens", ["", *columns], lines)


def _agreement(cells: dict[str, dict]) -> None:
    """Print the rank correlation of arms between the halves, and the best lamb of every mix on each."""
    from scipy.stats import spearmanr

    lines = []
    for cell, found in cells.items():
        kept = cells.get(cell.replace("tuned", "kept"))
        if "-tuned-" not in cell or kept is None:
            continue
        for name, measured in found["sets"].items():
            one, other = (
                {arm: effects["random"]["gain"] for arm, effects in of["against"].items()}
                for of in (measured, kept["sets"][name])
            )
            arms = sorted(one.keys() & other.keys())
            rank = spearmanr([one[arm] for arm in arms], [other[arm] for arm in arms])
            best = [max(LAMBS, key=lambda lamb: of[f"{MIX} {lamb:g}"]) for of in (one, other)]
            lines.append([cell.replace("-tuned", ""), name, f"{rank.statistic:.2f}", *(f"{lamb:g}" for lamb in best)])
    show("Halves", ["corpus, budget", "set", "rank correlation", f"best lamb of {MIX}, tuned", "kept"], lines)


def speed(tokens: int) -> None:
    """Time training and scoring on text-like tokens, on one core, and measure the memory."""
    random = np.random.default_rng(0)
    first = (random.zipf(1.2, tokens) % VOCABULARY).astype(np.int64)
    after = (np.roll(first, 1) * 7919 + random.integers(0, 6, tokens)) % VOCABULARY
    ids = np.where(random.random(tokens) < 0.5, after, first).astype(np.uint16)
    ends = np.arange(800, tokens + 1, 800)
    started = time.process_time()
    model = KneserNey(ids[: ends[-1]], ends, vocabulary=VOCABULARY)
    trained = time.process_time() - started
    scored = min(1_000_000, int(ends[-1]))
    started = time.process_time()
    model.log2_probabilities(np.roll(ids, 7)[:scored], np.arange(800, scored + 1, 800))
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines = [[f"{tokens:,}", f"{trained:.1f}", f"{scored:,}", f"{time.process_time() - started:.1f}", f"{gib:.1f}"]]
    show("One core", ["tokens trained", "s", "tokens scored", "s", "GiB at most"], lines)


def main() -> None:
    """Run one part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["prepare", "study", "tables", "speed"])
    parser.add_argument("--documents", type=Path, help="prepare: folder of the corpora")
    parser.add_argument("--output", type=Path, help="folder of what is prepared and measured")
    parser.add_argument("--corpora", nargs="+", choices=[*CORPORA, SPAM], default=[*CORPORA, SPAM])
    parser.add_argument("--halves", nargs="+", choices=HALVES, default=list(HALVES))
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--tokens", type=float, default=2e6, help="speed: tokens to train on")
    arguments = parser.parse_args()
    if arguments.part == "prepare":
        prepare(arguments.documents, arguments.output)
    elif arguments.part == "study":
        study(arguments.output, arguments.corpora, arguments.halves, arguments.budgets)
    elif arguments.part == "tables":
        tables(arguments.output)
    elif arguments.part == "speed":
        speed(int(arguments.tokens))


if __name__ == "__main__":
    main()
