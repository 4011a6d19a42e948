"""A small workspace of three shards, and removals in it as the flow makes them, without Prefect."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.dataset import export, materialize
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.flows.status.removal import Before, finish, request, rewrite
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.removals import Removals
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.pipeline.run_here import RunHere

COPY, NEAR = "copy", "near"


def text_of(shard, number):
    """Return a text of 80 words that are drawn at random."""
    letters = np.random.default_rng([shard, number]).choice(list("abcdefghij"), (80, 5))
    return " ".join("".join(word) for word in letters)


def row_of(shard, number, **changes):
    """Return a document; its texts are of no other."""
    row = {
        "text": text_of(shard, number),
        "id": f"{shard}-{number}",
        "url": f"https://www.host{number % 10}.example/{shard}/{number}",
        "dump": f"d{shard}",
        "score": float(np.random.default_rng([number, shard]).random()),
    }
    return row | changes


def write_corpus(folder):
    """Write three shards of 60 documents.

    Document 0-1 has an exact copy under another name in shard 1, one in its own shard, and a near-duplicate in shard 2.
    """
    folder.mkdir()
    for shard in range(3):
        rows = [row_of(shard, number) for number in range(60)]
        if shard == 0:
            rows.append(row_of(0, 60, text=text_of(0, 1).upper()))
        if shard == 1:
            rows.append(row_of(1, 60, text=text_of(0, 1), id=COPY, score=1.0))
        if shard == 2:
            words = text_of(0, 1).split()
            rows.append(row_of(2, 60, text=" ".join([*words[:40], "another", *words[41:]]), id=NEAR, score=1.0))
        rows[1]["score"] = 1.0
        pq.write_table(pa.Table.from_pylist(rows), folder / f"s{shard}.parquet")
    return folder


def settings_of(workspace, corpus, **sections):
    """Return a recipe that takes half of the documents, those of the best scores, from blocks of a shard each."""
    given = {
        "workspace": str(workspace),
        "source": {"path": str(corpus)},
        "ingest": {"min_chars": 20, "near_dedup": "minhash", "keep_dropped": True},
        "quality": {"scorers": [{"kind": "column", "column": "score"}]},
        "embedding": {"static_dimensions": 16},
        "selection": {"select_ratio": 0.5, "solver": "top_quality", "block_size": 60, "device": "cpu"},
        "materialize": {"layout": "flat", "partition_size": 1, "export": [{"format": "parquet", "seed": 1}]},
    }
    return PipelineSettings.model_validate({**given, **{name: given[name] | more for name, more in sections.items()}})


NOTHING_BEFORE = Before({}, frozenset())


def run_here(settings, before=NOTHING_BEFORE):
    """Run the recipe to the end, but for the report, whose charts take long; return what was built."""
    workspace = Workspace(settings.workspace)
    with workspace.in_use():
        LastRun(settings=settings, folder=str(Path.cwd())).save(workspace)
        run = RunHere(settings, listing=Listing(workspace))
        selection = select(run, prepare(run), before.shards)
        dataset = materialize(run, selection, before.partitions)
        export(run, dataset)
        update_index(workspace)
        write_catalog(workspace, shard_files(run), run.losses)
    return run.built


def go_on(settings):
    """Do what is to be done of a removal; return its receipt, and what was built."""
    workspace = Workspace(settings.workspace)
    built = run_here(settings, rewrite(workspace, settings, Removals.read(workspace)))
    return finish(workspace, settings)[0], built


def remove(settings, kind, names, **options):
    """Remove what is named; return the request, the receipt and what was built."""
    path = Path(f"{settings.workspace}.{kind}s.txt")
    path.write_text("\n".join(names))
    requested = request(settings, kind, path, **options)
    return requested, *go_on(settings)


if __name__ == "__main__":  # a removal in a process of its own, which is killed when it comes to a function
    import json
    import os
    import signal
    from pkgutil import resolve_name

    owner, _, name = sys.argv[2].rpartition(".")
    setattr(resolve_name(owner), name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    settings = PipelineSettings.model_validate(json.loads(Path(sys.argv[1]).read_text()))
    if Removals.read(Workspace(settings.workspace)).pending is None:
        request(settings, "url", Path(f"{settings.workspace}.urls.txt"))
    go_on(settings)
