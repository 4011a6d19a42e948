"""Write the page of the probe: what models learn from each variant, with intervals, on every held-out set."""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.probe.settings import GROUPS, POOL, ProbeSettings
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.witness.paired import bits_per_byte, compare_all, holm, paired_deviation, seeds_needed
from fineweb_mask.tasks.comparison.figures import described_settings, over_blocks
from fineweb_mask.tasks.probe.held_out import excluded_counts
from fineweb_mask.tasks.probe.losses import LOSSES, Losses, VariantFiles, task_set
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.labels import Series
from fineweb_mask.tasks.reporting.page import Column, Figure, Page, PageJob, Section, Table, Tile
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

BASELINE = "random"
DRAWN_GROUPS = 40
EFFECTS = (0.02, 0.01, 0.005)  # bits per byte, for which it is said how many seeds they need
MOST_LINES = 6  # of a chart, one for each colour
DIFFERENCE = ("difference", "low", "high", "visible", "adjusted", "verdict")
"""What tables show of a comparison."""
OWN_DISTRIBUTION = (
    "These documents were drawn from the corpus itself. A random selection has their distribution and is expected to "
    "win here; a selection that moves away from the corpus, for better or worse, loses."
)
GOLD_ANSWERS = (
    "Bits per byte of the right answers, without examples before the question. Accuracy is the share of questions "
    "whose right answer is the likeliest; at this size it is mostly noise."
)
NOT_A_VERDICT = (
    "Models of this size show that the machinery works and catch large effects. They prove nothing of larger models: "
    "run the preset 20m or 150m on a GPU for that."
)
DEFINITIONS = (
    "Models of the same size are trained on the same number of tokens of every variant, one for each seed. The seed "
    "decides the first weights, which documents are read, and their order; all variants have the same seeds, so that "
    "they are compared in pairs. Bits per byte is the loss on held-out text, for each byte of it: less is better.",
    "Unless they start from random weights, the models of a seed go on from one that was trained on as many tokens of "
    "random documents, at a small and constant rate, and read every document once: what they have in common is most of "
    "what differs by chance.",
    "Intervals are of 95%. They hold the error of the choice of documents, of which pages of one host vary "
    "together, and that of the seeds, by the analysis of variance of variants and seeds. p values are "
    "adjusted for all pairs of a set by Holm's method. The smallest visible difference is the one that would be found "
    "in 80% of such experiments, if it were the only comparison.",
    "Held-out documents were drawn by a hash of their text before anything was selected. No variant holds a document "
    "that shares 13 words in a row with one of them, or with a benchmark, phrases of more than 10 documents aside. Of "
    "the corpus, near-duplicates of held-out documents are left out, too.",
)


class ProbeJob(PageJob):
    """Write the page of the probe."""

    stage: ClassVar[Stage] = Stage("probe", version=4, folders=("probe",))
    settings: ProbeSettings
    selection: PipelineSelectionSettings
    n_tokens: int
    is_verdict: bool  # whether models of this size predict larger ones
    arms: dict[str, VariantFiles]
    excluded: dict[str, StageFile]  # by shard
    held_out: StageFile

    def depends_on(self) -> Dependencies:
        """Return the settings and the fingerprints of all trainings."""
        settings = [self.settings.model_dump(), self.selection.digested(exclude={"device"}), self.n_tokens]
        trained = [(arm.tokens, *arm.groups, *arm.models, *arm.answers) for arm in self.arms.values()]
        return Dependencies(settings=settings, inputs=[trained, self.held_out])


@stage_task
def write_probe_page(job: ProbeJob) -> None:
    """Write `index.html`, `metrics.json`, the plots, and `losses.parquet`."""
    losses = Losses.read(job.workspace, job.held_out, job.arms)
    metrics = _metrics(job, losses)
    details = {name: metrics[name] for name in ("arms", "bits_per_byte", "comparisons")}
    job.write(_page(job, metrics), details | {"rows": len(job.arms)}, {LOSSES: losses.parquet()})


def _metrics(job: ProbeJob, losses: Losses) -> dict[str, Any]:
    names = [POOL, *job.settings.heldout, *(name for name in dict.fromkeys(losses.sets) if name.startswith("task "))]
    rows = {name: np.flatnonzero(losses.sets == name) for name in names}
    rows = {name: at[losses.sizes[at] > 0] for name, at in rows.items()}
    baseline = BASELINE if BASELINE in job.arms else next(iter(job.arms))
    first = next(iter(job.arms.values())).models[0].details
    return {
        "preset": job.settings.preset,
        "parameters": first["parameters"],
        "device": first["device"],
        "tokens": job.n_tokens,
        "seeds": job.settings.seeds,
        "baseline": baseline,
        "held_out": {
            name: {
                "documents": len(at),
                "bytes": int(losses.sizes[at].sum()),
                "clusters": len(np.unique(losses.clusters[at])),
            }
            for name, at in rows.items()
        },
        "left_out": excluded_counts(job.excluded),
        "arms": {name: _arm(job, name) for name in job.arms},
        "bits_per_byte": {name: _of_arms(losses, at) for name, at in rows.items()},
        "paired_deviation": {
            name: paired_deviation(np.stack([one[:, at] for one in losses.bits.values()]), losses.sizes[at])
            for name, at in rows.items()
        },
        "comparisons": {name: _compared(losses, at, job.settings.seeds) for name, at in rows.items()},
        "groups": {} if job.settings.by is None else _of_groups(losses),
        "losses": {  # tokens seen and the training's loss there in nats per token, the mean over the seeds
            name: np.mean([file.details["losses"] for file in arm.models], axis=0).tolist()
            for name, arm in job.arms.items()
        },
    }


def _arm(job: ProbeJob, name: str) -> dict[str, Any]:
    files = job.arms[name]
    [settings] = [arm for arm in job.settings.arms if arm.name == name]
    blocks = [block for file in files.groups for block in file.details["blocks"]]
    measured = over_blocks(blocks, job.selection.budget_by) if blocks else {}
    tokens = files.tokens.details["tokens"]
    accuracies = [file.details["accuracy"] for file in files.answers]
    return settings.model_dump(include={"selector", "changes", "shuffled", "path"}) | {
        "documents": files.tokens.rows,
        "tokens": tokens,
        "repeats": job.n_tokens / tokens,
        "shared_words": files.tokens.details["shared_words"],
        "accuracy": {
            task_set(task): float(np.mean([one[task] for one in accuracies])) for task in (accuracies or [{}])[0]
        },
        **{key: measured.get(key) for key in ("mean_quality", "near_duplicates", "facility", "gap")},
    }


def _of_arms(losses: Losses, rows: NDArray[np.intp]) -> dict[str, Any]:
    found = {}
    for name, bits in losses.bits.items():
        of_seeds = bits_per_byte(bits[:, rows], losses.sizes[rows])
        sd = float(of_seeds.std(ddof=1)) if len(of_seeds) > 1 else None
        found[name] = {"mean": float(of_seeds.mean()), "sd": sd, "seeds": of_seeds.tolist()}
    return found


def _compared(losses: Losses, rows: NDArray[np.intp], seeds: int) -> list[dict[str, Any]]:
    bits = np.stack([one[:, rows] for one in losses.bits.values()])
    found = compare_all(bits, losses.sizes[rows], losses.clusters[rows])
    adjusted, pairs = holm([one.p for one in found]), combinations(losses.bits, 2)
    return [
        {"arm": arm, "other": other, **one._asdict(), "adjusted": p, "verdict": one.verdict(adjusted=p, seeds=seeds)}
        for (arm, other), one, p in zip(pairs, found, adjusted, strict=True)
    ]


def _of_groups(losses: Losses) -> dict[str, Any]:
    """Return, by group, the number of held-out documents and each variant's mean bits per byte on them."""
    of_corpus = np.isin(losses.sets, [POOL, GROUPS]) & (losses.sizes > 0)
    groups = sorted({group for group in losses.groups if group is not None})
    rows_of = [(group, np.flatnonzero(of_corpus & (losses.groups == group))) for group in groups]
    return {
        group: {"documents": len(rows), "arms": {name: one["mean"] for name, one in _of_arms(losses, rows).items()}}
        for group, rows in sorted(rows_of, key=lambda one: -len(one[1]))
        if len(rows)
    }


def _page(job: ProbeJob, metrics: Mapping[str, Any]) -> Page:
    sections = [_of_set(metrics, name) for name in metrics["held_out"] if name != POOL]
    sections.append(_of_set(metrics, POOL))
    if metrics["groups"]:
        sections.append(_groups(job, metrics))
    sections += [_arms(metrics), _training(metrics)]
    if len(metrics["arms"]) > 2:
        sections.append(_pairs(metrics))
    caution = () if job.is_verdict else (NOT_A_VERDICT,)
    seeds = metrics["seeds"]
    return Page(
        title="Does the subset train a better model?",
        lead=f"Small language models, trained on {metrics['tokens']:,} tokens of each variant and measured on held-out "
        f"text. {described_settings(job.selection)} Weight of quality: {job.selection.lamb:g}. A variant may change "
        "these settings.",
        tiles=[
            Tile(str(len(job.arms)), "variants"),
            Tile(str(seeds), "seeds of each" if seeds > 1 else "seed: no verdict"),
            Tile(f"{metrics['parameters']:,}", "parameters"),
            Tile(f"{metrics['tokens']:,}", "tokens of each training"),
        ],
        sections=[
            Section("What was found", (*(_finding(metrics, name) for name in metrics["held_out"]), *caution)),
            *sections,
            Section("How to read this", DEFINITIONS),
        ],
        metrics=metrics,
    )


def _finding(metrics: Mapping[str, Any], name: str) -> str:
    """Return what one held-out set says of all variants, in a sentence."""
    against, baseline = _against(metrics, name), metrics["baseline"]
    verdicts = [
        f"{arm} is {one['verdict']} than {baseline} by {abs(one['difference']):.3f} bits per byte"
        for arm, one in sorted(against.items(), key=lambda pair: pair[1]["difference"])
        if one["verdict"] in {"better", "worse"}
    ]
    deviation = metrics["paired_deviation"][name]
    needed = ""
    if deviation:
        seeds = ", ".join(f"{effect:g} needs {seeds_needed(deviation, effect)}" for effect in EFFECTS)
        needed = (
            f" Two variants of one seed differ by chance with a deviation of {deviation:.4f}: to see a difference of "
            f"{seeds} seeds."
        )
    if verdicts:
        return f"On {name}, {'; '.join(verdicts)}.{needed}"
    if metrics["seeds"] < 2:
        return f"On {name}: no verdict from one seed."
    missed = min(one["visible"] for one in against.values())
    return (
        f"On {name}, no difference from {baseline} was seen; one of less than {missed:.3f} bits per byte would not be."
        f"{needed}"
    )


def _against(metrics: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return the comparison of every other variant with the baseline on one set."""
    baseline, found = metrics["baseline"], {}
    for one in metrics["comparisons"][name]:
        if one["arm"] == baseline:
            verdict = {"better": "worse", "worse": "better"}.get(one["verdict"], one["verdict"])
            turned = {"difference": -one["difference"], "low": -one["high"], "high": -one["low"], "verdict": verdict}
            found[one["other"]] = one | turned
        elif one["other"] == baseline:
            found[one["arm"]] = one
    return found


def _of_set(metrics: Mapping[str, Any], name: str) -> Section:
    held_out, baseline = metrics["held_out"][name], metrics["baseline"]
    against, losses = _against(metrics, name), metrics["bits_per_byte"][name]
    seeds = metrics["seeds"]
    note = f"n = {held_out['documents']:,} documents of {held_out['clusters']:,} sources, {seeds} seeds"
    chart = charts.bars(
        f"Held-out set: {name}",
        f"bits per byte more than {baseline} (less is better)",
        [charts.Bar(arm, one["difference"], one["high"] - one["difference"]) for arm, one in against.items()],
        note=note,
        form="{:+.4f}".format,
    )
    figure = Figure(
        f"set-{re.sub('[^a-z0-9]', '-', name.lower())}",
        chart,
        f"Difference in bits per byte of each variant from {baseline} on {name}, with 95% intervals.",
        f"Left of zero is better than {baseline}. Lines: 95% intervals. {note}.",
    )
    order = sorted(losses, key=lambda arm: losses[arm]["mean"])
    itself = dict.fromkeys(DIFFERENCE) | {"verdict": "baseline"}
    rows = [[arm, losses[arm]["mean"], losses[arm]["sd"], *_difference(against.get(arm, itself))] for arm in order]
    columns = [Column("variant"), Column("bits per byte", "bits"), Column("sd of seeds", "bits")]
    columns += _difference_columns(f"minus {baseline}", f"verdict against {baseline}")
    tables = [Table(f"Variants on {name}", columns, rows, note=note, wide=True)]
    title = {POOL: "Documents of the corpus"}.get(name, f"Held-out set {name}")
    if name.startswith("task "):
        text: tuple[str, ...] = (GOLD_ANSWERS,)
        accuracy = [[arm, of["accuracy"][name]] for arm, of in metrics["arms"].items()]
        tables.append(Table(f"Accuracy on {name}", [Column("variant"), Column("accuracy", "share")], accuracy))
        title = name.capitalize()
    else:
        text = (OWN_DISTRIBUTION,) if name == POOL else ()
    return Section(title, text, figures=[figure], tables=tables)


def _pairs(metrics: Mapping[str, Any]) -> Section:
    """Compare every two variants on every set."""
    columns = [Column("pair"), *_difference_columns("difference", "verdict on the first")]
    found = metrics["comparisons"].items()
    rows = {name: [[f"{one['arm']} - {one['other']}", *_difference(one)] for one in pairs] for name, pairs in found}
    return Section("All pairs", tables=[Table(f"All pairs on {name}", columns, rows[name], wide=True) for name in rows])


def _difference_columns(first: str, last: str) -> list[Column]:
    """Return the columns of a table for what `_difference` returns."""
    bits = [Column(name, "bits") for name in (first, "from", "to", "smallest visible")]
    return [*bits, Column("p, adjusted", "number"), Column(last)]


def _difference(one: Mapping[str, Any]) -> list[Any]:
    return [one[key] for key in DIFFERENCE]


def _groups(job: ProbeJob, metrics: Mapping[str, Any]) -> Section:
    baseline, groups = metrics["baseline"], dict(list(metrics["groups"].items())[:DRAWN_GROUPS])
    arms = [name for name in metrics["arms"] if name != baseline]
    values = np.array([[of["arms"][arm] - of["arms"][baseline] for arm in arms] for of in groups.values()])
    reach = float(np.abs(values).max()) or 1.0
    note = f"{len(groups)} of {len(metrics['groups'])} groups, by the column {job.settings.by}"
    chart = charts.heat_map(
        "Groups", f"bits per byte more than {baseline}", list(groups), arms, values, limits=(-reach, reach),
        note=note, form="{:+.3f}",
    )  # fmt: skip
    alt = f"Difference in bits per byte from {baseline} by group."
    figure = Figure("groups", chart, alt, f"Less is better. {note}.")
    columns = [
        Column("group"),
        Column("held-out documents", "count"),
        *(Column(arm, "bits") for arm in metrics["arms"]),
    ]
    rows = [[group, of["documents"], *of["arms"].values()] for group, of in metrics["groups"].items()]
    table = Table("Bits per byte by group", columns, rows, wide=True)
    return Section("Groups of the corpus", (OWN_DISTRIBUTION,), [figure], [table])


def _arms(metrics: Mapping[str, Any]) -> Section:
    columns = [
        Column("variant"), Column("is"), Column("documents", "count"), Column("tokens", "count"),
        Column("times read", "number"), Column("mean quality", "number"), Column("near-dup.", "share"),
        Column("facility", "number"), Column("shared words", "count"),
    ]  # fmt: skip
    rows = [
        [name, _described(one), one["documents"], one["tokens"], one["repeats"], one["mean_quality"],
         one["near_duplicates"], one["facility"], one["shared_words"]]
        for name, one in metrics["arms"].items()
    ]  # fmt: skip
    left_out = metrics["left_out"]
    text = (
        f"Left out of the corpus before the selection: {left_out.get('held_out', 0):,} held-out documents, "
        f"{left_out.get('near_duplicate', 0):,} near-duplicates of them, and {left_out.get('shared_words', 0):,} that "
        "share 13 words in a row with a held-out document or a benchmark."
    )
    note = "Shared words: documents of a dataset that were dropped because of them."
    return Section("Variants", (text,), tables=[Table("What the variants hold", columns, rows, note=note, wide=True)])


def _described(arm: Mapping[str, Any]) -> str:
    if arm["path"] is not None:
        return str(arm["path"])
    shuffled = [f"{arm['shuffled']:.0%} shuffled"] if arm["shuffled"] else []
    changes = ", ".join([*_assignments(arm["changes"]), *shuffled])
    return f"{arm['selector']}: {changes}" if changes else str(arm["selector"])


def _assignments(changes: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """Yield changed settings as they are written in `--arms`: `near_duplicates.weight=0`."""
    for key, value in changes.items():
        if isinstance(value, dict):
            yield from _assignments(value, f"{section}{key}.")
        else:
            yield f"{section}{key}={value}"


def _training(metrics: Mapping[str, Any]) -> Section:
    series = []
    for name, curve in list(metrics["losses"].items())[:MOST_LINES]:
        points = np.array(curve)[:: max(1, len(curve) // 12)]
        series.append(Series(name, (points[:, 0] / 1e6).tolist(), points[:, 1].tolist()))
    some = "" if len(series) == len(metrics["losses"]) else f", the first {MOST_LINES} variants"
    note = f"mean over {metrics['seeds']} seeds{some}"
    chart = charts.lines("Training", "tokens (millions)", "training loss (nats per token)", series,
                         note=note)  # fmt: skip
    caption = f"A lower loss here only means that the variant's documents are easier to predict. {note}."
    return Section("Training", figures=[Figure("training", chart, "Training loss of the variants by tokens.", caption)])
