"""Count how often the intervals of `fineweb-mask price` hold the truth of the whole.

    python -m benchmarks.price workspaces/newsgroups --by topic --trials 10

Each trial divides the documents of a finished workspace into ours and a candidate: at random, and by half of the values
of a column. A sample of the candidate is priced; then all of it is selected from together with all of ours, which is
the truth. The models are those of the workspace; vectors are cut to their main directions, so that trials are fast.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.tables import show
from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.status.inspection import last_run, look_at
from fineweb_mask.models.analysis.vectors import nearest_cosines, principal_axes, unit_rows
from fineweb_mask.models.ledger.price import Documents, Draws, Estimate, Known, Topics, join, priced, share
from fineweb_mask.models.ledger.teaching import SETS, Teaching
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.tasks.ledger.price import read_ours
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_groups

SETTINGS = SelectionSettings(metrics={"facility": 1, "disf": 1}, select_ratio=0.1, lamb=0.5)
PARTS = ("documents", "selection", "teaching")
NEAR = 0.9


def main() -> None:
    """Run the trials, and print for each estimate in how many the interval holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", help="of a finished run")
    parser.add_argument("--by", required=True, help="column by whose values candidates are cut")
    parser.add_argument("--trials", type=int, default=10, help="of each kind of candidate")
    parser.add_argument("--documents", type=int, default=3_000, help="of ours, and of the candidate, at most")
    parser.add_argument("--sample", type=int, default=500)
    parser.add_argument("--dimensions", type=int, default=96)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--output", type=Path, help="file of JSON lines, one for each trial")
    arguments = parser.parse_args()
    documents, texts, groups = read(arguments.workspace, arguments.by, arguments.dimensions)
    found: dict[tuple[str, str], list[tuple[float, Estimate]]] = defaultdict(list)
    for seed in range(arguments.trials):
        dice = np.random.default_rng(seed)
        values = np.unique(groups)
        of_groups = np.isin(groups, dice.choice(values, len(values) // 2, replace=False))
        for kind, is_theirs in (("at random", dice.random(len(texts)) < 0.5), (f"by {arguments.by}", of_groups)):
            ours, theirs = (
                dice.permutation(np.flatnonzero(of))[: arguments.documents] for of in (~is_theirs, is_theirs)
            )
            if min(len(ours), len(theirs)) < 3 * arguments.sample:
                continue  # one value is nearly all
            told = trial(documents, texts, ours, theirs, arguments.sample, arguments.parts, seed)
            for name, pair in told.items():
                found[kind, name].append(pair)
            if arguments.output is not None:
                with arguments.output.open("a") as stream:
                    stream.write(json.dumps({"seed": seed, "kind": kind, **told}) + "\n")
    table = [
        [
            kind,
            name,
            f"{sum(one.low <= truth <= one.high for truth, one in pairs)} of {len(pairs)}",
            f"{np.mean([truth for truth, _ in pairs]):.4f}",
            f"{np.mean([one.value - truth for truth, one in pairs]):+.4f}",
            f"{np.mean([one.high - one.low for _, one in pairs]) / 2:.4f}",
        ]
        for (kind, name), pairs in sorted(found.items())
    ]
    show(arguments.workspace, ["candidate", "estimate", "holds", "truth", "mean error", "half of the interval"], table)


def read(workspace: str, by: str, dimensions: int) -> tuple[Documents, list[str], np.ndarray]:
    """Return what a selection reads of a workspace's documents, their texts, and the group of each."""
    opened, last, _ = last_run(workspace)
    shards = prepare(look_at(opened, last.settings)).shards
    total = sum(shard.rows for shard in shards)
    documents, texts = read_ours(opened, shards, total)
    axes = principal_axes(documents.vectors[:4_000], dimensions)
    vectors = unit_rows((documents.vectors @ axes.axes.astype(np.float32)).astype(np.float32))
    groups = [read_groups(opened, shard, by)[read_columns(opened, shard).candidate] for shard in shards]
    return documents._replace(vectors=vectors), texts, np.concatenate(groups).astype(str)


def trial(
    documents: Documents,
    texts: list[str],
    ours: np.ndarray,
    theirs: np.ndarray,
    sample: int,
    parts: list[str],
    seed: int,
) -> dict[str, tuple[float, Estimate]]:
    """Return the truth of every estimate, and the estimate from a sample of the candidate."""
    found: dict[str, tuple[float, Estimate]] = {}
    own, whole = documents.take(ours), documents.take(theirs)
    fraction, some = sample / len(theirs), whole.take(np.arange(sample))
    drawn = np.random.default_rng(seed).permutation(len(ours))[: round(fraction * len(ours))]
    if "documents" in parts:
        near = nearest_cosines(whole.vectors, own.vectors) >= NEAR
        known, topics = Known.of(own.vectors[drawn]), Topics.of(some.vectors)
        new, of = known.are_new(whole.vectors), topics.members(whole.vectors)
        clusters = np.bincount(of, new) > 0.5 * np.bincount(of)
        found["near-duplicates"] = float(near.mean()), share(near[:sample], fraction)
        found["unlike ours"] = float(new.mean()), share(new[:sample], fraction)
        found["new clusters"] = float(clusters.sum()), topics.new_ones(some.vectors, new[:sample], fraction)
    if not {"selection", "teaching"} & set(parts):
        return found
    truth = join(own, whole, SETTINGS)
    draws, place = Draws.of(len(drawn), np.arange(sample), len(drawn), seed), np.arange(sample)
    measure = None
    if "teaching" in parts:
        names = [texts[one] for one in (*ours, *theirs)]
        judged = Teaching(own, whole, names, NEAR, seed=1).measure(truth, np.arange(len(ours)), np.arange(len(theirs)))
        of_sample = [*(names[one] for one in drawn), *names[len(ours) :][:sample]]
        measure = Teaching(own.take(drawn), some, of_sample, NEAR).measure
    result = priced(own.take(drawn), some, place, draws, SETTINGS, fraction, measure=measure)
    found["selected"] = float(truth.kept[len(ours) :].mean()), result.kept
    found["J"] = truth.gain, result.gain
    if measure is not None:
        found |= {f"predicts {name}": (judged[at][0], result.measured[at]) for at, name in enumerate(SETS)}
    return found


if __name__ == "__main__":
    main()
