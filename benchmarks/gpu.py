"""Measure on a GPU what was never measured on one, the most important first, within the minutes of one call.

    python -m benchmarks.gpu --output results                # on a GPU; again, until it says that nothing is left
    python -m benchmarks.gpu --output results --only block   # some sections
    python -m benchmarks.gpu --output results --small        # the same code on the CPU, small: it must only run
    python -m benchmarks.gpu --output results --page benchmarks/notebook/gpu.md    # write what is measured as tables

Every measurement is a line of `results/measured.jsonl`, so a later call goes on with what is left. One that would not
fit into the minutes left is put off; one that failed is kept with its reason, and one that never ended is not tried a
third time. Sections, in this order:

- `agree`: every metric and solver on the GPU against the CPU: the same documents, the same objective.
- `block`: a million documents of 768 dimensions, every metric and the recipes' objective, with the proof.
- `lists`: neighbours and near-duplicates, exact and in groups, with several sizes of a block of products.
- `embed`: a BERT-base of random weights on documents as long as FineWeb's, as a share of the device's bfloat16 rate.
- `edu`: the shape of FineWeb-Edu's classifier; score and vector from one pass against two passes.
- `learner`: the paper's policy gradient on the block of a million.

Only `models/` is imported: torch, transformers, sentence-transformers, pyarrow and pydantic are enough.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from benchmarks.bert import save_classifier, save_encoder
from benchmarks.measuring import in_turns
from fineweb_mask.models.selection import neighbours
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.selection import METRICS, SelectionSettings

RECIPES = "facility+disf"
"""The metrics of the recipes, with lamb 0.5 and near-duplicates."""
MAKE_ROWS = 65_536  # vectors made at once, so that float32 noise does not fill the memory
MEAN_LOG_WORDS, DEVIATION_LOG_WORDS = 5.88, 0.79
"""Logarithm of the number of words of a FineWeb document. The deviation is measured on 3,020 documents; the mean is set
so that the average document has 640 tokens (15 trillion tokens in 24 billion documents)."""
MOVED = 1e-6  # of every value: more than rounding differs between devices
STARTED, FAILED, DONE = "started", "failed", "done"
MOST_TRIES = 2


@dataclass(frozen=True)
class Size:
    """How large the measurements are."""

    device: str = "cuda"
    agree: tuple[int, int] = (4_000, 64)  # documents, dimensions
    block: tuple[int, int] = (1_000_000, 768)
    lists: tuple[int, ...] = (262_144, 1_000_000)
    texts: int = 8_192
    layers: int = 12
    hidden: int = 768
    epochs: int = 200  # of the paper's learner
    repeats: int = 3


SMALL = Size("cpu", (300, 8), (600, 16), (600,), 24, 2, 64, 5, 1)


@dataclass(frozen=True)
class Measurement:
    """One row of a table."""

    section: str
    name: str
    seconds: float  # that it may take; a guess
    measure: Callable[[], dict[str, Any]] = field(compare=False)

    @property
    def key(self) -> str:
        """Its name in the file of results."""
        return f"{self.section}: {self.name}"


def made_up(count: int, seed: int = 0) -> list[str]:
    """Return documents of invented words, as long as FineWeb's."""
    dice = random.Random(seed)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    words = ["".join(dice.choices(syllables, k=dice.choice((1, 2, 2, 3)))) for _ in range(20_000)]
    common = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(words))))
    lengths = [max(5, int(dice.lognormvariate(MEAN_LOG_WORDS, DEVIATION_LOG_WORDS))) for _ in range(count)]
    return [" ".join(dice.choices(words, cum_weights=common, k=length)) for length in lengths]


@cache
def block(n: int, d: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Make clustered unit vectors on the device, (n, d) float16, and quality (n,) float32."""
    generator = torch.Generator(device).manual_seed(0)
    n_clusters = max(8, n // 100)
    centres = torch.randn((n_clusters, d), generator=generator, device=device)
    mean = torch.randn(d, generator=generator, device=device)
    spectrum = (1 + torch.arange(d, device=device) / 20).rsqrt()
    label = torch.randint(n_clusters, (n,), generator=generator, device=device)
    features = torch.empty((n, d), dtype=torch.float16, device=device)
    for start in range(0, n, MAKE_ROWS):
        part = label[start : start + MAKE_ROWS]
        noise = 0.8 * torch.randn((len(part), d), generator=generator, device=device)
        rows = (noise + centres[part] + mean) * spectrum
        features[start : start + MAKE_ROWS] = torch.nn.functional.normalize(rows, dim=1).half()
    score = 0.3 * torch.randn(n_clusters, generator=generator, device=device)[label]
    score += 0.25 * torch.randn(n, generator=generator, device=device)
    return features, torch.sigmoid(2 * score)


def mix(metrics: str, **changes: object) -> SelectionSettings:
    """Return settings of metrics joined by `+`, a tenth of the documents, without near-duplicates."""
    fixed = {"select_ratio": 0.1, "lamb": 0.5, "near_duplicates": None}
    return SelectionSettings.model_validate(fixed | {"metrics": dict.fromkeys(metrics.split("+"), 1.0)} | changes)


def timed(work: Callable[[], Any], device: str) -> tuple[Any, dict[str, Any]]:
    """Return what work returns, its seconds, and the most memory of the GPU in GiB."""
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    found = work()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    memory = {"GiB": torch.cuda.max_memory_allocated() / 2**30} if on_gpu else {}
    return found, {"s": seconds, **memory}


def agree(size: Size, metrics: str, solver: str, kind: str) -> dict[str, Any]:
    """Select on the GPU twice, on the CPU, and there from vectors that differ by a little."""
    features, quality = block(*size.agree, "cpu")
    given = features if kind == "float16" else features.float()
    chosen = mix(metrics, solver=solver, policy_gradient={"n_epochs": 50}, near_duplicates=0.9)
    there, again = (select(given, quality, chosen, device=size.device) for _ in range(2))
    here = select(given, quality, chosen)
    noise = torch.randn(given.shape, generator=torch.Generator().manual_seed(1))
    moved = select(given.float() * (1 + MOVED * noise), quality, chosen)
    same, usual = (len(np.intersect1d(one.indices, here.indices)) / len(here.indices) for one in (there, moved))
    return {
        "same bits twice": there.inclusion.tobytes() == again.inclusion.tobytes(),
        "same documents as on the CPU": f"{same:.2%}",
        "on the CPU, vectors moved by a millionth": f"{usual:.2%}",
        "objective, GPU less CPU": f"{there.objective - here.objective:+.1e}",
        "bound, GPU less CPU": "-" if here.upper_bound is None else f"{there.upper_bound - here.upper_bound:+.1e}",
    }


def whole_block(size: Size, metrics: str, solver: str, **changes: object) -> dict[str, Any]:
    """Select from the large block, from checks to proof."""
    features, quality = block(*size.block, size.device)
    chosen = mix(metrics, solver=solver, **changes)
    found, took = timed(lambda: select(features, quality, chosen, device=size.device), size.device)
    gap = "-" if found.gap is None else f"{found.gap:.3%}"
    return took | {"objective": f"{found.objective:.5f}", "gap": gap, "random": f"{found.random_objective:.5f}"}


def lists(size: Size, n: int, elements: int) -> dict[str, Any]:
    """Find the nearest 64 documents of each."""
    features, _ = block(*size.block, size.device)
    rows = checked_features(features[:n], torch.device(size.device))
    kept = dict(neighbours.PRODUCT_ELEMENTS)
    neighbours.PRODUCT_ELEMENTS[size.device] = elements
    try:
        _, took = timed(lambda: neighbours.nearest(rows, min(64, n // 4)), size.device)
    finally:
        neighbours.PRODUCT_ELEMENTS.update(kept)
    return took


@cache
def matrix_peak(device: str) -> float:
    """Return the floating-point operations per second of the best bfloat16 matrix product; NaN on the CPU."""
    if not device.startswith("cuda"):
        return float("nan")
    best = 0.0
    for side in (4_096, 8_192, 16_384):
        left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
        for _ in range(3):
            left @ right
        _, took = timed(lambda left=left, right=right: [left @ right for _ in range(10)], device)
        best = max(best, 10 * 2 * side**3 / took["s"])
    return best


def forward_flops(lengths: np.ndarray, layers: int, hidden: int) -> float:
    """Return the operations of the matrix products for texts of these lengths, without padding."""
    return float((layers * (24 * lengths * hidden**2 + 4 * lengths.astype(np.float64) ** 2 * hidden)).sum())


@cache
def texts_of(size: Size) -> list[str]:
    return made_up(size.texts)


@cache
def model_folder(size: Size, kind: str) -> Path:
    """Save a model of random weights: `encoder` or `classifier`."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
    texts = texts_of(size)[:2_000]
    if kind == "encoder":
        save_encoder(folder, texts, size.layers, size.hidden)
        return folder / "model"
    save_classifier(folder, texts, size.layers, size.hidden)
    return folder


def rate(size: Size, lengths: np.ndarray, work: Callable[[], object]) -> dict[str, Any]:
    """Return documents and tokens per second, the median of the repeats, and the share of the device's rate."""
    work()  # loads kernels, and compiles
    medians, took = timed(lambda: in_turns({"it": work}, size.repeats), size.device)
    seconds = medians["it"]
    share = forward_flops(lengths, size.layers, size.hidden) / seconds / matrix_peak(size.device)
    return took | {
        "s": seconds,
        "documents/s": round(len(lengths) / seconds),
        "tokens/s": round(lengths.sum() / seconds),
        "of the bfloat16 rate": f"{share:.1%}",
    }


def ours(size: Size, batch_tokens: int) -> dict[str, Any]:
    """Embed with the encoder."""
    from fineweb_mask.models.embedding.load import load_encoder

    model = str(model_folder(size, "encoder"))
    recipe = EmbeddingSettings(model=model)
    compute = torch.bfloat16 if size.device.startswith("cuda") else torch.float32
    encoder = load_encoder(model, recipe, size.device, compute=compute, batch_tokens=batch_tokens)
    texts = texts_of(size)
    tokens, tokenising = timed(lambda: encoder.tokenise(texts), "cpu")
    found = rate(size, tokens.lengths, lambda: encoder.encode(texts))
    return found | {"of it the tokenizer, s": tokenising["s"]}


def theirs(size: Size, batch: int) -> dict[str, Any]:
    """Embed with `SentenceTransformer.encode` in bfloat16."""
    from sentence_transformers import SentenceTransformer

    from fineweb_mask.models.embedding.load import load_encoder

    model, texts = str(model_folder(size, "encoder")), texts_of(size)
    recipe = EmbeddingSettings(model=model)
    lengths = load_encoder(model, recipe, "cpu").tokenise(texts).lengths
    peer = SentenceTransformer(model, device=size.device, model_kwargs={"dtype": torch.bfloat16})
    return rate(size, lengths, lambda: peer.encode(texts, batch_size=batch, convert_to_tensor=True))


def edu(size: Size, batch_tokens: int, way: str) -> dict[str, Any]:
    """Score, embed, or do both, with the shape of FineWeb-Edu's classifier."""
    from benchmarks.one_pass import Passes

    passes, texts = Passes(model_folder(size, "classifier"), size.device, batch_tokens), texts_of(size)
    lengths = passes.scorer.tokenise(texts).lengths
    ways: dict[str, Callable[[], object]] = {
        "score": lambda: passes.scorer.score(texts),
        "score and vector in one pass": lambda: passes.one_pass(texts),
        "in two passes": lambda: (passes.embedding(texts), passes.score(texts)),
    }
    return rate(size, lengths, ways[way])


def of_selection(size: Size) -> Iterator[Measurement]:
    """Yield the measurements of the sections `agree`, `block` and `lists`."""
    for metrics, kind in itertools.product((*METRICS, RECIPES), ("float32", "float16")):
        yield Measurement(
            "agree", f"{metrics}, mean_field, {kind}", 5, partial(agree, size, metrics, "mean_field", kind)
        )
    for solver in ("greedy", "policy_gradient"):
        name = f"pairwise, {solver}, float32"
        yield Measurement("agree", name, 5, partial(agree, size, "pairwise", solver, "float32"))
    for metrics in (*METRICS, RECIPES):
        yield Measurement("block", metrics, 60, partial(whole_block, size, metrics, "mean_field"))
    near = partial(whole_block, size, RECIPES, "mean_field", near_duplicates=0.9)
    yield Measurement("block", f"{RECIPES} and near-duplicates", 90, near)
    usual = neighbours.PRODUCT_ELEMENTS[size.device]
    for n in size.lists:
        for elements in (usual, usual // 4):
            name = f"{n:,} documents, products of 2^{elements.bit_length() - 1}"
            yield Measurement("lists", name, 40, partial(lists, size, n, elements))


def of_models(size: Size) -> Iterator[Measurement]:
    """Yield the measurements of the sections `embed` and `edu`."""
    for batch_tokens in (65_536, 16_384, 262_144):
        yield Measurement("embed", f"{batch_tokens:,} tokens a pass", 60, partial(ours, size, batch_tokens))
    for batch in (128, 32, 512):
        name = f"SentenceTransformer.encode, bfloat16, {batch}"
        yield Measurement("embed", name, 60, partial(theirs, size, batch))
    half = replace(size, texts=size.texts // 2)
    for way in ("score", "score and vector in one pass", "in two passes"):
        yield Measurement("edu", way, 30, partial(edu, half, 65_536, way))


def measurements(size: Size) -> Iterator[Measurement]:
    """Yield all measurements, the most important first."""
    yield from of_selection(size)
    yield from of_models(size)
    few = {"n_epochs": size.epochs}
    learner = partial(whole_block, size, "pairwise", "policy_gradient", policy_gradient=few)
    yield Measurement("learner", f"pairwise, {size.epochs} of 10,000 epochs", 90, learner)


class Results:
    """What is measured so far, one JSON object a line."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "measured.jsonl"
        self.lines: list[dict[str, Any]] = []
        if self.path.exists():
            self.lines = [json.loads(line) for line in self.path.read_text().splitlines()]

    def add(self, file: TextIO, key: str, state: str, **more: object) -> None:
        """Write a line at once: a later call reads it, however this one ends."""
        line = {"key": key, "state": state, **more}
        self.lines.append(line)
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())

    def of(self, key: str) -> dict[str, Any] | None:
        """Return what a measurement ended with."""
        return next((line for line in reversed(self.lines) if line["key"] == key and line["state"] != STARTED), None)

    def is_left(self, key: str) -> bool:
        """Whether a measurement is to be tried."""
        started = sum(line["key"] == key and line["state"] == STARTED for line in self.lines)
        return self.of(key) is None and started < MOST_TRIES


def run(size: Size, results: Results, only: list[str], minutes: float) -> list[str]:
    """Measure what is left while there is time; return what is left after it."""
    ends = time.monotonic() + 60 * minutes
    wanted = [one for one in measurements(size) if not only or one.section in only]
    with results.path.open("a") as file:
        for one in wanted:
            if not results.is_left(one.key) or (size != SMALL and time.monotonic() + one.seconds > ends):
                continue
            results.add(file, one.key, STARTED)
            started = time.monotonic()
            try:
                found = one.measure()
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
                results.add(file, one.key, FAILED, reason=f"out of memory: {str(error).splitlines()[0]}")
            except Exception as error:  # noqa: BLE001 - the reason is the result; the others are still measured
                results.add(file, one.key, FAILED, reason=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
                if "CUDA error" in str(error):  # nothing works in this process any more
                    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]])
            else:
                results.add(file, one.key, DONE, found=found)
            took = time.monotonic() - started
            print(
                f"{took:6.1f} s  {one.key}: {json.dumps(results.lines[-1].get('found', results.lines[-1]))}", flush=True
            )
    return [one.key for one in wanted if results.is_left(one.key)]


def shown(value: object) -> str:
    """Return a cell of a table."""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def page(size: Size, results: Results) -> str:
    """Return the page of all tables; what is not measured says so."""
    name = next((line["name"] for line in results.lines if line["key"] == "device"), None)
    of = f"on one {name}" if name else "not measured yet: no GPU was at hand"
    text = [
        "# On a GPU",
        "",
        f"Written by `python -m benchmarks.gpu --output results --page benchmarks/notebook/gpu.md`; {of}.",
        "What each section measures stands at the head of [the script](../gpu.py). Single runs; rates are medians.",
    ]
    for section, group in itertools.groupby(measurements(size), key=lambda one: one.section):
        rows = [(one.name, results.of(one.key)) for one in group]
        heads = list(dict.fromkeys(head for _, line in rows if line for head in line.get("found", {}))) or ["result"]
        text += ["", f"## {section}", "", f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
        for row, line in rows:
            found = {heads[0]: "not measured"} if line is None else line.get("found", {heads[0]: line.get("reason")})
            text.append(f"| {row} | {' | '.join(shown(found.get(head, '')) for head in heads)} |")
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", nargs="+", default=[], help="sections; all, if not given")
    parser.add_argument("--minutes", type=float, default=9, help="nothing is started that would end after these")
    parser.add_argument("--small", action="store_true", help="on the CPU, seconds: the code must only run")
    parser.add_argument("--page", type=Path, help="write the tables to this file, and measure nothing")
    arguments = parser.parse_args()
    size, results = SMALL if arguments.small else Size(), Results(arguments.output)
    if arguments.page:
        arguments.page.write_text(page(size, results))
        return
    if size.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --small runs the same code on the CPU")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if not any(line["key"] == "device" for line in results.lines):
        name = torch.cuda.get_device_name() if size.device == "cuda" else "CPU"
        with results.path.open("a") as file:
            results.add(file, "device", DONE, name=name)
    left = run(size, results, arguments.only, arguments.minutes)
    print(f"left: {', '.join(left)}" if left else "nothing is left")


if __name__ == "__main__":
    main()
