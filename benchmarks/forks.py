"""Compare the order of selections by n-grams with that by small transformers that fork from a common start.

    python -m benchmarks.forks train --documents FOLDER --study OUT --output FORKS --corpora web_mix --seeds 0 1
    python -m benchmarks.forks tables --study OUT --output FORKS

OUT is what benchmarks/witness.py prepared and measured. For each seed a model of 1.3 million parameters reads random
documents; every arm then goes on from it at a small constant rate, each document once. Arms, tokens and held-out sets
are those of the cell `kept`, at 15% of the tokens. What is trained is a file for each arm and seed, so it goes on
where it stopped.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from benchmarks.objective import CORPORA, _weights
from benchmarks.tables import show
from benchmarks.witness import TOKENIZER_CHARACTERS, VOCABULARY, Half, _first, _rows, read
from fineweb_mask.models.probe.language_model import train
from fineweb_mask.models.probe.packing import DocumentStarts
from fineweb_mask.models.probe.settings import PRESETS
from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.witness.arms import random_documents
from fineweb_mask.models.witness.effects import UNPREDICTABLE
from fineweb_mask.models.witness.tokens import PackedTokens, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BUDGET, BASE_TOKENS, FORK_TOKENS, SMALL_VOCABULARY = 0.15, 490_000, 300_000, 4_096
MIXES = {
    "pairwise": (0.0, 0.9),
    "facility": (0.0, 0.9),
    "disf": (0.0, 0.3),
    "pairwise+facility": (0.3, 0.8),
    "facility+disf": (0.3, 0.8),
}
SELECTORS = ("top_quality", "quality_sampling", "semdedup", "d4")
RANDOM, AGAIN, SHUFFLED = "random", "random, another draw", "20% shuffled"
RATE = 1 / 10  # of the start's largest


def arms_of(half: Half) -> dict[str, np.ndarray]:
    """Return the places of the documents that every arm selects."""
    tokens, common = half.pool.lengths, {"budget_by": "tokens", "select_ratio": BUDGET}
    budget = int(BUDGET * tokens.sum())
    found = {RANDOM: random_documents(tokens, budget, 0), AGAIN: random_documents(tokens, budget, 1)}
    wanted = {
        f"{mix} {lamb:g}": {"metrics": _weights(mix), "lamb": lamb} for mix, lambs in MIXES.items() for lamb in lambs
    }
    for name, changes in (wanted | {name: {"solver": name} for name in SELECTORS}).items():
        settings = SelectionSettings.model_validate(common | changes)
        also = SelectorInputs(scores={"quality": half.quality})
        found[name] = select(half.features, half.quality, settings, tokens=tokens, also=also).indices
    return found


def tokenizer_of(documents: Path, name: str, vocabulary: int) -> "Tokenizer":
    """Return a tokenizer of the corpus, as benchmarks/witness.py trains it."""
    rows = _rows(pq.read_table(documents / f"{name}.parquet"), CORPORA[name], is_web=name != "newsgroups20")
    return train_tokenizer(_first(list(rows), TOKENIZER_CHARACTERS), vocabulary)


def texts_of(packed: PackedTokens, tokenizer: "Tokenizer") -> list[str]:
    """Return the texts of documents."""
    return tokenizer.decode_batch([part.tolist() for part in np.split(packed.ids, packed.ends[:-1])])


def train_all(documents: Path, study: Path, output: Path, name: str, seeds: list[int]) -> None:
    """Train what is not trained yet on one corpus."""
    preset = PRESETS["cpu"].model_copy(update={"evaluations": 1, "fork_learning_rate": RATE})
    half = read(study / f"{name}-kept.npz")
    large, small = (tokenizer_of(documents, name, size) for size in (VOCABULARY, SMALL_VOCABULARY))
    sets = [half.held_out[one].tokens for one in ("pool", "elsewhere")]
    held_out = DocumentStarts([text for one in sets for text in texts_of(one, large)], small, preset.context)
    pool = PackedTokens.of(texts_of(half.pool, large), small)
    np.savez(output / f"{name}.npz", sizes=held_out.sizes, pool=len(sets[0].ends))
    arms = arms_of(half)
    rest = np.setdiff1d(np.arange(len(pool.ends)), np.concatenate([arms[RANDOM], arms[AGAIN]]))
    for seed in seeds:
        folder = output / f"{name}-{seed}"
        folder.mkdir(exist_ok=True)
        start = folder / "start"
        jobs = {"start": pool.take(np.random.default_rng(seed).permutation(rest), BASE_TOKENS)}
        jobs |= {arm: pool.take(places) for arm, places in arms.items()}
        jobs[SHUFFLED] = jobs[RANDOM].shuffled(0.2, 0)
        for arm, tokens in jobs.items():
            if (folder / f"{arm}.npy").exists():
                continue
            is_start = arm == "start"
            with tempfile.TemporaryDirectory() as scratch:
                found = train(
                    preset,
                    SMALL_VOCABULARY,
                    tokens,
                    held_out,
                    n_tokens=BASE_TOKENS if is_start else FORK_TOKENS,
                    seed=seed,
                    folder=Path(scratch) / "checkpoints",
                    device="cpu",
                    keep=(lambda model, path=start: model.save_pretrained(path)) if is_start else None,
                    start=None if is_start else start,
                )
            np.save(folder / f"{arm}.npy", found.bits)
            print(f"{name} {seed} {arm}", flush=True)


def tables(study: Path, output: Path) -> None:
    """Print every arm's difference to random by both, and their rank correlation."""
    from scipy.stats import spearmanr

    for path in sorted(output.glob("*.npz")):
        name = path.stem
        half = read(study / f"{name}-kept.npz")
        with np.load(path) as held:
            sizes, count = held["sizes"], int(held["pool"])
        cell = json.loads((study / f"{name}-kept-{BUDGET:g}.json").read_text())["sets"]
        bits = {
            seed: {one.stem: np.load(one) for one in folder.glob("*.npy") if one.stem != "start"}
            for seed, folder in enumerate(sorted(output.glob(f"{name}-*")))
        }
        for of_set, measured in cell.items():
            rows = slice(count, None) if of_set == "elsewhere" else slice(count)
            sample = half.held_out[of_set].sample._replace(sizes=sizes[rows])
            usual = np.mean([of_seed[RANDOM][rows] for of_seed in bits.values()], axis=0) / sizes[rows]
            kept = usual <= UNPREDICTABLE * np.median(usual)
            losses = {
                arm: [float(sample.take(kept).losses(of_seed[arm][rows][kept])) for of_seed in bits.values()]
                for arm in bits[0].keys() & bits[max(bits)].keys()  # the last may not be finished
            }
            base = np.array(losses[RANDOM])
            percent = {arm: 100 * (1 - np.array(of_arm) / base) for arm, of_arm in losses.items()}
            both = [arm for arm in measured["against_random"] if arm in percent]
            by_ngrams = [-measured["against_random"][arm]["difference"] for arm in both]
            rank = spearmanr(by_ngrams, [percent[arm].mean() for arm in both])
            between = spearmanr([percent[arm][0] for arm in both], [percent[arm][-1] for arm in both])
            usual = float(np.mean(measured["losses"]["random"]))
            lines = [
                [
                    arm,
                    f"{-100 * measured['against_random'][arm]['difference'] / usual:+.1f}" if arm in both else "",
                    *(f"{one:+.2f}" for one in percent[arm]),
                ]
                for arm in sorted(percent, key=lambda arm: -percent[arm].mean())
            ]
            show(
                f"{name}, {of_set}: rank correlation {rank.statistic:.2f} (p = {rank.pvalue:.3f}), {len(both)} arms; "
                f"between seeds {between.statistic:.2f}",
                ["arm", "n-grams", *(f"transformer, seed {seed}" for seed in bits)],
                lines,
            )


def main() -> None:
    """Train, or print what was trained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["train", "tables"])
    parser.add_argument("--documents", type=Path, help="folder of the corpora")
    parser.add_argument("--study", type=Path, required=True, help="folder of benchmarks/witness.py")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--corpora", nargs="+", choices=list(CORPORA), default=["web_mix", "newsgroups20"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.part == "train":
        for name in arguments.corpora:
            train_all(arguments.documents, arguments.study, arguments.output, name, arguments.seeds)
    else:
        tables(arguments.study, arguments.output)


if __name__ == "__main__":
    main()
