"""What a run takes of a corpus of which many documents are copies, beside the checkout of another commit.

    git worktree add ../before COMMIT
    python -m benchmarks.duplicates ../shared/realdata/web_mix.parquet --tree ../before

The corpus is two files: one of the source's documents, and one in which copies of these and new ones alternate. A BERT
of random weights scores and embeds in one pass, as FineWeb-Edu's classifier does. The checkouts take turns.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from transformers.utils import logging

from benchmarks.bert import save_classifier
from benchmarks.command import ROOT, timed_run
from benchmarks.gpu import made_up
from benchmarks.tables import show

SMOKE = 60
"""Documents, made up, of a quick look."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", help="Parquet file with a text column; not needed with --smoke")
    parser.add_argument("--documents", type=int, default=3_000, help="different ones")
    parser.add_argument("--copies", type=float, default=0.4, help="share of the corpus")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout to time in turns")
    parser.add_argument("--smoke", action="store_true", help="a few made-up texts and a small model, once")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    texts = read_texts(arguments)
    trees = [ROOT, *(tree.resolve() for tree in arguments.tree)]
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_recipe(Path(folder), texts, arguments)
        found: dict[Path, list[tuple[float, dict[str, Any]]]] = {tree: [] for tree in trees}
        for repeat in range(arguments.repeats):
            for number, tree in enumerate(trees):
                workspace = Path(folder) / f"workspace-{number}-{repeat}"
                found[tree].append(timed_run(recipe, ["--workspace", str(workspace)], tree))
                embedded = sum(pq.read_metadata(path).num_rows for path in (workspace / "embeddings").glob("*.parquet"))
                found[tree][-1][1]["embedded"] = embedded
    seconds = {tree: sorted(wall for wall, _ in runs)[len(runs) // 2] for tree, runs in found.items()}
    show(
        f"{len(texts):,} different documents, {arguments.copies:.0%} of the corpus are copies, medians of "
        f"{arguments.repeats}",
        ["checkout", "documents embedded", "seconds", "to the last"],
        [
            [
                tree.name,
                f"{runs[0][1]['embedded']:,}",
                f"{seconds[tree]:.1f}",
                f"{seconds[tree] / seconds[trees[-1]]:.2f}",
            ]
            for tree, runs in found.items()
        ],
    )


def read_texts(arguments: argparse.Namespace) -> list[str]:
    if arguments.smoke:
        arguments.layers, arguments.hidden, arguments.repeats = 2, 64, 1
        return made_up(SMOKE)
    if arguments.source is None:
        raise SystemExit("give a Parquet file of documents, or --smoke")
    found = pq.read_table(arguments.source, columns=["text"])["text"].drop_null().unique().to_pylist()
    return [text for text in found if len(text) > 200][: arguments.documents]


def write_recipe(folder: Path, texts: list[str], arguments: argparse.Namespace) -> Path:
    copies = round(len(texts) * arguments.copies / (1 - arguments.copies))
    first, rest = texts[:copies], texts[copies:]
    mixed = [text for pair in zip(first, rest, strict=False) for text in pair]
    mixed += [*first[len(rest) :], *rest[len(first) :]]
    (folder / "corpus").mkdir()
    for name, some in (("a", first), ("b", mixed)):
        pq.write_table(pa.table({"text": some}), folder / "corpus" / f"{name}.parquet")
    save_classifier(folder / "model", texts, arguments.layers, arguments.hidden)
    recipe = {
        "workspace": str(folder / "workspace"),
        "source": {"path": str(folder / "corpus")},
        "quality": {"scorers": [{"name": "edu", "kind": "edu", "model": str(folder / "model")}]},
        "embedding": {"model": "from_quality"},
        "selection": {"select_ratio": 0.1},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


if __name__ == "__main__":
    main()
