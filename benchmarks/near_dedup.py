r"""Measure how near-duplicates are found by MinHash, beside datatrove's pipeline with the same settings.

    python -m benchmarks.near_dedup web_mix.parquet newsgroups20.parquet

The truth is exact: the Jaccard similarity of the sets of five-word runs of all pairs of documents, from words in lower
case without anything else (`\w+`), neither's own rule. Recall is the share of the pairs of a similarity from a
threshold on of which at least one document is dropped: a pair that is not found leaves both. Precision is the share of
the dropped documents with another document of at least 0.8, 0.7, or 0.5, anywhere in the corpus. Both read the same
documents from memory, use one process, one thread and a temporary folder, and include everything up to the list of
dropped documents; of several runs the least time counts. `--copies` adds copies of real documents with a few words
replaced, where a corpus has few near-duplicates of its own. datatrove needs the packages of its extra `processing`:
spacy, and xxhash below 4.
"""

import argparse
import os
import re
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse
from numpy.typing import NDArray

from benchmarks.measuring import least_seconds
from benchmarks.tables import show
from fineweb_mask.models.dedup.minhash import WORDS, Sketch
from fineweb_mask.models.schemas import documents_schema
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.tasks.dedup.duplicates import DedupJob, dedup
from fineweb_mask.tasks.dedup.sketch import SketchJob, sketch
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

THRESHOLD = 0.7
SKETCH = Sketch.for_threshold(THRESHOLD)
THRESHOLDS = (0.9, 0.8, 0.7, 0.5)


def similar_pairs(texts: list[str], least: float) -> scipy.sparse.csr_array:
    """Return the Jaccard similarity of all pairs from `least` on, as the upper half of a matrix (n, n)."""
    names: dict[tuple[str, ...], int] = {}
    rows, columns = list[int](), list[int]()
    for row, text in enumerate(texts):
        words = re.findall(r"\w+", text.lower())
        shingles = {tuple(words[place : place + 5]) for place in range(len(words) - 4)}
        rows += [row] * len(shingles)
        columns += [names.setdefault(shingle, len(names)) for shingle in shingles]
    held = scipy.sparse.csr_array(
        (np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=(len(texts), len(names))
    )
    sizes = held.sum(axis=1)
    is_shared = held.sum(axis=0) > 1
    held = held[:, is_shared.nonzero()[0]]
    found = []
    for start in range(0, len(texts), 500):
        common = (held[start : start + 500] @ held.T).tocoo()
        union = sizes[common.row + start] + sizes[common.col] - common.data
        similarity = common.data / union
        kept = (similarity >= least) & (common.col > common.row + start)
        found.append((similarity[kept], common.row[kept] + start, common.col[kept]))
    data, left, right = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return scipy.sparse.csr_array((data, (left, right)), shape=(len(texts), len(texts)))


def ours(texts: list[str]) -> NDArray[np.int64]:
    """Return the rows that are dropped, by the stages' own functions."""
    with tempfile.TemporaryDirectory() as folder:
        workspace, path = Workspace(folder), Path(folder) / "documents.parquet"
        schema = pa.schema([documents_schema().field(name) for name in ("row", "text")])
        rows = pa.array(np.arange(len(texts)), pa.uint32())
        pq.write_table(pa.table([rows, pa.array(texts)], schema=schema), path)
        documents = StageFile(stage="ingest", name="a", path=path.name, rows=len(texts), bytes=0, fingerprint="of a")
        made = sketch(SketchJob(root=folder, documents=documents, sketch=SKETCH))
        ingest = IngestSettings(exact_dedup="off", near_dedup=THRESHOLD)
        compared = {"documents": (documents,), "signatures": (made,)}
        job = DedupJob(root=folder, settings=ingest, memory_limit="2GB", **compared)
        dedup(job)
        [found] = job.shard_files() or []
        return duplicate_rows(workspace, found).astype(np.int64)


def datatrove(texts: list[str]) -> NDArray[np.int64]:
    """Return the rows that datatrove drops: its three steps in this process, one after the other."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup.minhash import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupSignature,
    )

    config = MinhashConfig(n_grams=WORDS, num_buckets=SKETCH.bands, hashes_per_bucket=SKETCH.rows)
    with tempfile.TemporaryDirectory() as folder:
        documents = (Document(text=text, id=str(row)) for row, text in enumerate(texts))
        MinhashDedupSignature(f"{folder}/signatures", config).run(documents, 0, 1)
        buckets = MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)
        for bucket in range(SKETCH.bands):
            buckets.run(None, bucket, SKETCH.bands)
        MinhashDedupCluster(f"{folder}/buckets", f"{folder}/removed", config=config).run(None, 0, 1)
        removed = Path(folder) / "removed" / "000000.remove"
        return np.fromfile(removed, dtype="<u4").astype(np.int64) if removed.is_file() else np.empty(0, np.int64)


def with_copies(texts: list[str], copies: int) -> list[str]:
    """Append copies of documents of 100 words or more, of which 0 to 6% of the words are replaced by "other"."""
    random = np.random.default_rng(0)
    long = [row for row, text in enumerate(texts) if len(text.split()) >= 100]
    found = []
    for row in random.choice(long, copies, replace=False):
        pieces = re.split(r"(\s+)", texts[row])  # words at even places
        share = random.uniform(0, 0.06)
        found.append(
            "".join(
                "other" if not place % 2 and random.random() < share else piece for place, piece in enumerate(pieces)
            )
        )
    return [*texts, *found]


def measure(path: Path, copies: int, repeats: int) -> None:
    texts = [text for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]
    texts = with_copies(texts, copies) if copies else texts
    pairs = similar_pairs(texts, 0.3).tocoo()
    nearest = np.zeros(len(texts))
    for side in (pairs.row, pairs.col):
        np.maximum.at(nearest, side, pairs.data)
    counts = ", ".join(f"{int((pairs.data >= least).sum()):,} from {least}" for least in THRESHOLDS)
    table = []
    for name, work in (("this", ours), ("datatrove", datatrove)):
        dropped, seconds = least_seconds(partial(work, texts), repeats)
        is_dropped = np.zeros(len(texts), dtype=bool)
        is_dropped[dropped] = True
        found = is_dropped[pairs.row] | is_dropped[pairs.col]
        recalls = [f"{found[pairs.data >= least].mean():.3f}" for least in THRESHOLDS]
        precisions = [f"{(nearest[dropped] >= least).mean():.3f}" for least in THRESHOLDS[1:]]
        table.append([name, f"{len(dropped):,}", *recalls, *precisions, f"{len(texts) / seconds:,.0f}"])
    header = [
        "",
        "dropped",
        *(f"recall from {least}" for least in THRESHOLDS),
        "precision 0.8",
        "precision 0.7",
        "precision 0.5",
    ]
    show(f"{path.stem}: {len(texts):,} documents; pairs: {counts}", [*header, "documents/s"], table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="Parquet files with a column `text`")
    parser.add_argument("--copies", type=int, default=0, help="edited copies that are added to each file's documents")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for path in arguments.files:
        measure(path, arguments.copies, arguments.repeats)


if __name__ == "__main__":
    main()
