"""Ask whether the subset trains a better model: probe many arms on three pools of real documents.

    python -m benchmarks.probe prepare --documents FOLDER --output OUT
    python -m benchmarks.probe run OUT --pools web_mix newsgroups20 mixture
    python -m benchmarks.probe table OUT

Held-out sets: documents of the pool; 150 pages of FineWeb-Edu; half of the pages that a language model gave 4 or 5 of
5 points; a topic of the newsgroups that no pool has. Quality is the score of the classifier of the sample's labels.
Each run takes one thread, so two pools at a time fill two cores.
"""

import argparse
import hashlib
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.command import COMMAND, ROOT
from benchmarks.tables import show

LEFT_ASIDE = "sci.space"
DEFAULT = "mean_field"
CHANGED = {
    "lamb0.1": "lamb=0.1",
    "lamb0.3": "lamb=0.3",
    "lamb0.5": "lamb=0.5",
    "lamb0.9": "lamb=0.9",
    "no_charge": "near_duplicates.weight=0",
    "pairwise": "metrics=pairwise",
    "disf": "metrics=disf",
    "facility": "metrics=facility",
}
SELECTORS = ["random", DEFAULT, "top_quality", "quality_sampling", "semdedup"]
ARMS = {
    "web_mix": [*SELECTORS, *CHANGED],
    "newsgroups20": [*SELECTORS, "lamb0.3", "no_charge", "pairwise", "disf", "facility"],
    "mixture": [*SELECTORS, "lamb0.3", "no_charge"],
}
"""By pool: every arm differs from `mean_field`, which has the recipes' settings, in one of them."""
SETS = ["edu", "labelled", "topic"]
TOKENS, SEEDS = 300_000, 3


def prepare(documents: Path, output: Path) -> None:
    """Write the pools and the held-out files."""
    output.mkdir(parents=True, exist_ok=True)
    web, news = (pq.read_table(documents / f"{name}.parquet") for name in ("web_mix", "newsgroups20"))
    edu = pq.read_table(documents / "fineweb_edu_scored_150.parquet", columns=["text"])
    high = [kind == "legal_0_5" and label >= 4 for kind, label in _columns(web, "quality_kind", "quality_label")]
    aside = [
        one and hashlib.sha256(text.encode()).digest()[0] % 2 == 0
        for one, (text,) in zip(high, _columns(web, "text"), strict=True)
    ]
    is_topic = [topic == LEFT_ASIDE for (topic,) in _columns(news, "topic")]
    _write(output / "edu.parquet", edu["text"].to_pylist())
    _write(output / "labelled.parquet", web.filter(pa.array(aside))["text"].to_pylist())
    _write(output / "topic.parquet", news.filter(pa.array(is_topic))["text"].to_pylist())
    pool = web.filter(pa.array([not one for one in aside]))["text"].to_pylist()
    posts = news.filter(pa.array([not one for one in is_topic]))["text"].to_pylist()
    _write(output / "web_mix" / "pool.parquet", pool)
    _write(output / "newsgroups20" / "pool.parquet", posts)
    _write(output / "mixture" / "pool.parquet", [*pool, *posts, *_spam()])


def _columns(table: pa.Table, *names: str) -> list[tuple]:
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def _spam() -> list[str]:
    truth = pq.read_table(ROOT / "data_samples" / "truth.parquet", columns=["id", "is_spam"])
    spam = {one for one, is_spam in _columns(truth, "id", "is_spam") if is_spam}
    corpus = pq.read_table(ROOT / "data_samples" / "corpus", columns=["id", "text"])
    return [text for one, text in _columns(corpus, "id", "text") if one in spam]


def _write(path: Path, texts: list[str | None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": [text for text in texts if text]}), path)
    print(f"{path.name} of {path.parent.name}: {sum(1 for text in texts if text):,} texts")


def run(output: Path, pools: list[str], tokens: int, seeds: int) -> None:
    """Probe the pools, two at a time with one thread each."""
    with ThreadPoolExecutor(2) as threads:
        for line in threads.map(lambda pool: _run_one(output, pool, tokens, seeds), pools):
            print(line, flush=True)


def _run_one(output: Path, pool: str, tokens: int, seeds: int) -> str:
    started = time.perf_counter()
    recipe = output / pool / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(_recipe(output, pool)))
    arms = ",".join(f"{arm}=mean_field[{CHANGED[arm]}]" if arm in CHANGED else arm for arm in ARMS[pool])
    held_out = [part for name in SETS for part in ("--heldout", f"{name}={output / f'{name}.parquet'}")]
    command = [*COMMAND, "probe", str(recipe), "--arms", arms]
    command += ["--tokens", str(tokens), "--seeds", str(seeds), "--json", *held_out]
    with (output / pool / "run.log").open("w") as log:
        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log, check=False)
    return f"{pool}: exit code {done.returncode} after {time.perf_counter() - started:,.0f} s"


def _recipe(output: Path, pool: str) -> dict:
    labels = {"path": str(ROOT / "data_samples" / "labels.parquet"), "threshold": 3}
    recipe = yaml.safe_load((ROOT / "deployments" / "recipes" / "newsgroups.yaml").read_text())
    scorer = recipe["quality"]["scorers"][0] | {"labels": labels}
    recipe["quality"]["scorers"] = [scorer]
    recipe["workspace"] = str(output / pool / "workspace")
    recipe["source"]["path"] = str(output / pool / "pool.parquet")
    return recipe


def table(output: Path, pools: list[str]) -> None:
    """Print, for every pool, what each arm reaches on each held-out set, against random."""
    for pool in pools:
        path = output / pool / "workspace" / "probe" / "metrics.json"
        if not path.is_file():
            continue
        metrics = json.loads(path.read_text())
        sets = list(metrics["held_out"])
        lines = []
        for arm, of in metrics["arms"].items():
            cells = [against_random(metrics, name, arm) for name in sets]
            held = [f"{of['documents']:,}", f"{of['mean_quality']:.3f}", f"{100 * of['near_duplicates']:.1f}%"]
            lines.append([arm, *held, f"{of['facility']:.3f}", *cells])
        visible = [
            one["visible"]
            for name in sets
            for one in metrics["comparisons"][name]
            if "random" in (one["arm"], one["other"])
        ]
        title = f"{pool}: {metrics['tokens']:,} tokens, {metrics['seeds']} seeds, left out {metrics['left_out']}"
        show(title, ["arm", "documents", "quality", "near-dup.", "facility", *sets], lines)
        print(f"smallest visible difference from random: {min(visible):.4f} to {max(visible):.4f} bits per byte")


def against_random(metrics: dict, name: str, arm: str) -> str:
    """Return the bits per byte of `random`, or what another arm needs more, with its interval; * is a verdict."""
    if arm == "random":
        losses = metrics["bits_per_byte"][name][arm]
        return f"{losses['mean']:.4f} (sd {losses['sd']:.4f})"
    [one] = [one for one in metrics["comparisons"][name] if {one["arm"], one["other"]} == {arm, "random"}]
    sign = 1 if one["arm"] == arm else -1
    star = "*" if one["verdict"] in {"better", "worse"} else ""
    return f"{sign * one['difference']:+.4f} ± {(one['high'] - one['low']) / 2:.4f}{star}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prepared = commands.add_parser("prepare")
    prepared.add_argument("--documents", type=Path, required=True)
    prepared.add_argument("--output", type=Path, required=True)
    for name in ("run", "table"):
        command = commands.add_parser(name)
        command.add_argument("output", type=Path)
        command.add_argument("--pools", nargs="+", choices=list(ARMS), default=list(ARMS))
        if name == "run":
            command.add_argument("--tokens", type=int, default=TOKENS)
            command.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(arguments.documents, arguments.output)
    elif arguments.command == "run":
        run(arguments.output.absolute(), arguments.pools, arguments.tokens, arguments.seeds)
    else:
        table(arguments.output, arguments.pools)


if __name__ == "__main__":
    main()
