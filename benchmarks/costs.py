"""Work out, on paper, what a corpus takes: machine hours, storage, objects and requests, from rates and prices.

    python -m benchmarks.costs                                  # FineWeb, 24 billion documents
    python -m benchmarks.costs --documents 1e9 --embed 400 --gpus 64

Nothing runs. Every input is an option: put in your own rates and prices. The default rates of a core are those of
`benchmarks.cluster stages`, divided by three where a stage reads texts (theirs are of 1 kB), and of
`benchmarks.filters` for what else `ingest` does with raw pages; that of a GPU is an H100's
(`benchmarks.gpu`); all prices are guesses.
"""

import argparse
from typing import NamedTuple

from benchmarks.tables import show

REQUESTS = {  # of a job, in its stage: reads (GET, HEAD, LIST), writes (PUT, POST)
    "ingest": (6, 1),
    "dedup": (2, 0),
    "score": (4, 1),
    "embed": (4, 1),
    "select": (8, 1),
    "materialize": (10, 6),
}


OF_RAW_PAGES = ("extract", "filter")
"""What else `ingest` does with raw pages; it reads and writes no more for them."""


class Inputs(NamedTuple):
    """What the tables are computed from."""

    documents: float
    shards: float
    chars: float  # of a document
    compressed: float  # bytes of a character, in zstd
    dimensions: int
    ratio: float  # of documents that are selected
    cores: int
    gpus: int
    extract: float  # documents a second of one core
    filter: float
    ingest: float
    dedup: float
    score: float
    embed: float  # of one GPU
    select: float
    materialize: float
    core_hour: float  # price
    gpu_hour: float
    put_thousand: float
    get_thousand: float
    stored_month: float  # of a TB


DEFAULTS = Inputs(
    documents=24e9,
    shards=25_000,
    chars=3_000,
    compressed=0.42,
    dimensions=768,
    ratio=0.1,
    cores=512,
    gpus=64,
    extract=176,
    filter=190,
    ingest=9_600,
    dedup=500_000,
    score=6_700,
    embed=2_800,
    select=7_400,
    materialize=20_000,
    core_hour=0.04,
    gpu_hour=2.5,
    put_thousand=0.005,
    get_thousand=0.0004,
    stored_month=23.0,
)


def hours(inputs: Inputs) -> list[list[str]]:
    """Return, by stage: hours of one core or GPU, days on all, and the price."""
    rows, total = [], 0.0
    for stage in (*OF_RAW_PAGES, *REQUESTS):
        of_gpu = stage == "embed"
        machine = inputs.documents / getattr(inputs, stage) / 3600
        price = machine * (inputs.gpu_hour if of_gpu else inputs.core_hour)
        total += price
        days = machine / (inputs.gpus if of_gpu else inputs.cores) / 24
        rows.append([stage, "GPU" if of_gpu else "core", f"{machine:,.0f}", f"{days:.2f}", f"{price:,.0f}"])
    return [*rows, ["all", "", "", "", f"{total:,.0f}"]]


def storage(inputs: Inputs) -> list[list[str]]:
    """Return, by what is stored: TB, and its price a month."""
    n, vector = inputs.documents, inputs.dimensions
    text = n * inputs.chars * inputs.compressed
    kept = {
        "documents": text + 100 * n,
        "scores": 8 * n,
        "vectors, float16": 2 * vector * n,
        "masks": 5 * n,
        "dataset": text * inputs.ratio,
    }
    return [[what, f"{size / 1e12:,.2f}", f"{size / 1e12 * inputs.stored_month:,.0f}"] for what, size in kept.items()]


def requests(inputs: Inputs) -> list[list[str]]:
    """Return, by stage: objects and requests, and their price; jobs are one a shard."""
    rows = []
    for stage, (reads, writes) in REQUESTS.items():
        gets, puts = inputs.shards * reads, inputs.shards * writes
        price = gets / 1000 * inputs.get_thousand + puts / 1000 * inputs.put_thousand
        rows.append([stage, f"{inputs.shards:,.0f}", f"{gets:,.0f}", f"{puts:,.0f}", f"{price:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in DEFAULTS._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    inputs = Inputs(**vars(parser.parse_args()))
    print(", ".join(f"{name} {value:g}" for name, value in inputs._asdict().items()))
    show(
        "Hours", ["stage", "of a", "hours", f"days on {inputs.cores} cores, {inputs.gpus} GPUs", "price"], hours(inputs)
    )
    show("Storage", ["what", "TB", "price a month"], storage(inputs))
    show("Objects and requests", ["stage", "objects", "reads", "writes", "price"], requests(inputs))


if __name__ == "__main__":
    main()
