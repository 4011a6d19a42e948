"""Measure the lists of nearest documents that `facility` reads: exact, in groups, and by libraries for this.

    python -m benchmarks.graph compare --n 50000
    python -m benchmarks.graph compare --vectors newsgroups.npz --ways exact groups faiss-hnsw
    python -m benchmarks.graph same --n 10000
    python -m benchmarks.graph growth --sizes 20000 50000 100000

`compare` builds lists of 64 in a process each: CPU seconds on one thread, without imports and compilation, the highest
memory of the process, and the share of the nearest 64 and 16 of 256 random documents that the lists hold. Libraries
that are not installed are left out. `same` repeats each with two threads and compares the lists bit for bit.
"""

import argparse
import hashlib
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.synthetic import clustered
from benchmarks.tables import show
from fineweb_mask.models.selection.neighbours import RECALL, nearest, nearest_in_groups
from fineweb_mask.models.selection.rows import Rows

K = 64
Vectors = NDArray[np.float32]
Lists = NDArray[np.integer[Any]]  # (n, K)


def exact(x: Vectors, threads: int) -> Lists:
    torch.set_num_threads(threads)
    return nearest(Rows(torch.from_numpy(x)), K).index.T.numpy()


def groups(x: Vectors, threads: int, recall: float = RECALL) -> Lists:
    torch.set_num_threads(threads)
    return nearest_in_groups(Rows(torch.from_numpy(x)), K, recall).index.T.numpy()


def _faiss(threads: int) -> Any:  # noqa: ANN401 - the module
    faiss = importlib.import_module("faiss")
    faiss.omp_set_num_threads(threads)
    return faiss


def faiss_flat(x: Vectors, threads: int) -> Lists:
    faiss = _faiss(threads)
    return faiss.knn(x, x, K, metric=faiss.METRIC_INNER_PRODUCT)[1]


def faiss_hnsw(x: Vectors, threads: int, m: int = 16, build: int = 40, search: int = 64) -> Lists:
    faiss = _faiss(threads)
    index = faiss.IndexHNSWFlat(x.shape[1], m, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = build, search
    index.add(x)
    return index.search(x, K)[1]


def _faiss_ivf(x: Vectors, threads: int, description: str, probes: int) -> Any:  # noqa: ANN401 - an index
    faiss = _faiss(threads)
    index = faiss.index_factory(x.shape[1], description, faiss.METRIC_INNER_PRODUCT)
    lists = faiss.extract_index_ivf(index)
    lists.cp.niter, lists.cp.max_points_per_centroid, lists.nprobe = 4, 64, probes
    index.train(x)
    index.add(x)
    return index


def faiss_ivf(x: Vectors, threads: int, probes: int = 8) -> Lists:
    return _faiss_ivf(x, threads, f"IVF{round(2 * len(x) ** 0.5)},Flat", probes).search(x, K)[1]


def faiss_ivf_batches(x: Vectors, threads: int, probes: int = 8) -> Lists:
    index = _faiss_ivf(x, threads, f"IVF{round(2 * len(x) ** 0.5)},Flat", probes)
    batches = importlib.import_module("faiss.contrib.big_batch_search")
    batches.BigBatchSearcher.report = lambda *_: None  # it prints for every list
    return batches.big_batch_search(index, x, K)[1]


def faiss_ivf_codes(x: Vectors, threads: int, probes: int = 16) -> Lists:
    index = _faiss_ivf(x, threads, f"PCA128,IVF{round(2 * len(x) ** 0.5)},PQ64x4fs,RFlat", probes)
    index.k_factor = 2
    return index.search(x, K)[1]


def hnswlib(x: Vectors, threads: int, m: int = 16, build: int = 40, search: int = 64) -> Lists:
    index = importlib.import_module("hnswlib").Index("ip", x.shape[1])
    index.init_index(len(x), ef_construction=build, M=m, random_seed=0)
    index.set_num_threads(threads)
    index.add_items(x)
    index.set_ef(search)
    return index.knn_query(x, K)[0].astype(np.int64)


def usearch(x: Vectors, threads: int, m: int = 16, build: int = 40, search: int = 64) -> Lists:
    library = importlib.import_module("usearch.index")
    options = {"connectivity": m, "expansion_add": build, "expansion_search": search}
    index = library.Index(ndim=x.shape[1], metric="ip", dtype="f32", **options)
    index.add(np.arange(len(x)), x, threads=threads)
    return index.search(x, K, threads=threads).keys.astype(np.int64)


def pynndescent(x: Vectors, threads: int) -> Lists:
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    descent = importlib.import_module("pynndescent").NNDescent
    options = {"metric": "cosine", "n_neighbors": K, "random_state": 0, "n_jobs": threads}
    if len(x) > 1000:
        pynndescent(x[:1000], threads)  # compile
        pynndescent.compiled = time.process_time()  # type: ignore[attr-defined]
    return descent(x, **options).neighbor_graph[0].astype(np.int64)


WAYS: dict[str, Callable[[Vectors, int], Lists]] = {
    "exact": exact,
    "groups": groups,
    "faiss-flat": faiss_flat,
    "faiss-hnsw": faiss_hnsw,
    "faiss-hnsw-32": lambda x, threads: faiss_hnsw(x, threads, m=32, build=80, search=96),
    "faiss-ivf": faiss_ivf,
    "faiss-ivf-batches": faiss_ivf_batches,
    "faiss-ivf-codes": faiss_ivf_codes,
    "hnswlib": hnswlib,
    "usearch": usearch,
    "pynndescent": pynndescent,
}


def vectors(arguments: argparse.Namespace, n: int | None = None) -> tuple[Vectors, NDArray[np.float32]]:
    if arguments.vectors is None:
        return clustered(n or arguments.n)
    with np.load(arguments.vectors) as file:
        features = file["features"].astype(np.float32, copy=False)
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        return features, file["quality"]


def recalls(x: Vectors, lists: Lists) -> list[float]:
    """Return the shares of the nearest K and K / 4 that the lists of a sample hold; equally near ones count alike."""
    sample = np.random.default_rng(1).choice(len(x), min(len(x), 256), replace=False)
    similarity = x[sample] @ x.T
    best = -np.sort(-similarity, axis=1)[:, :K]
    own = [np.unique(row[row >= 0]) for row in lists[sample]]
    found = np.stack(
        [np.sort(np.pad(s[u], (0, K - len(u)), constant_values=-1)) for s, u in zip(similarity, own, strict=True)]
    )
    found = found[:, ::-1]
    return [float((found[:, :k] >= best[:, k - 1 : k] - 1e-6).mean()) for k in (K, K // 4)]


def one(arguments: argparse.Namespace) -> None:
    """Build lists in this process and print what was measured."""
    x, _ = vectors(arguments)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak counts from here
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    lists = WAYS[arguments.ways[0]](x, arguments.threads)
    ended = time.process_time()
    seconds = ended - max(started, getattr(pynndescent, "compiled", 0.0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    digest = hashlib.sha256(np.ascontiguousarray(lists).tobytes()).hexdigest()
    print(json.dumps([seconds, (peak - before) // 1024, recalls(x, lists), digest]))


def measured(arguments: argparse.Namespace, way: str, threads: int) -> tuple[float, int, list[float], str] | None:
    """Measure one way in a process of its own; None, with a line that says why, if it fails."""
    command = [sys.executable, "-m", "benchmarks.graph", "one", "--vectors", arguments.vectors, "--ways", way]
    command += ["--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=arguments.limit, env=environment
        )
    except subprocess.TimeoutExpired:
        print(f"{way}: stopped after {arguments.limit:g} s", flush=True)
        return None
    if run.returncode:
        print(f"{way}: {run.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    seconds, peak, shares, digest = json.loads(run.stdout.splitlines()[-1])
    print(f"{way}: {seconds:.1f} s, recall {shares[0]:.3f}", flush=True)
    return seconds, peak, shares, digest


def compare(arguments: argparse.Namespace) -> None:
    table, first = [], None
    for way in arguments.ways:
        found = measured(arguments, way, arguments.threads)
        if found is not None:
            seconds, peak, (all_of_them, nearest_of_them), _ = found
            first = first or seconds
            shares = [f"{all_of_them:.3f}", f"{nearest_of_them:.3f}"]
            table.append([way, *shares, f"{seconds:.1f}", f"{first / seconds:.1f}x", f"{peak:,}"])
    header = ["way", f"recall of {K}", f"of {K // 4}", "CPU s", f"{arguments.ways[0]} / it", "more MiB"]
    show(f"lists of {K} nearest", header, table)


def same(arguments: argparse.Namespace) -> None:
    table = []
    for way in arguments.ways:
        found = [run[3] for run in (measured(arguments, way, threads) for threads in (1, 2, 2)) if run is not None]
        if len(found) == 3:
            table.append([way, "yes" if found[1] == found[2] else "no", "yes" if found[0] == found[1] else "no"])
    show(f"n = {arguments.n:,}", ["way", "equal twice on 2 threads", "equal on 1 and 2 threads"], table)


def growth(arguments: argparse.Namespace) -> None:
    table = []
    torch.set_num_threads(arguments.threads)
    for n in arguments.sizes:
        rows = Rows(torch.from_numpy(vectors(arguments, n)[0]))
        started = time.process_time()
        found = nearest_in_groups(rows, K)
        seconds = time.process_time() - started
        line = [f"{n:,}", f"{seconds:.1f}", "exact" if found.missed is None else f"{found.missed.recall:.3f}"]
        if n <= arguments.largest_exact:
            started = time.process_time()
            nearest(rows, K)
            took = time.process_time() - started
            line += [f"{took:.1f}", f"{took / seconds:.1f}x"]
        table.append([*line, *["-"] * (5 - len(line))])
        print(table[-1], flush=True)
    show("growth", ["n", "groups, CPU s", "recall", "exact, CPU s", "exact / groups"], table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"compare": compare, "same": same, "growth": growth, "one": one}
    parser.add_argument("command", choices=commands)
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--vectors", help=".npz file with features (n, d) and quality (n,)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one way")
    parser.add_argument("--sizes", nargs="+", type=int, default=[20_000, 50_000, 100_000])
    parser.add_argument("--largest-exact", type=int, default=50_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.vectors is None and arguments.command in {"compare", "same"}:
            features, quality = clustered(arguments.n)
            arguments.vectors = str(Path(folder) / "vectors.npz")
            np.savez(arguments.vectors, features=features, quality=quality)
            del features, quality
        commands[arguments.command](arguments)


if __name__ == "__main__":
    main()
