"""Ask of every group of documents whether its scores say more than its name, without any label.

A score that mostly recognises the source cannot order the documents inside it. For each group: how much of the score's
deviation is left inside it, its share of the best tenth, whether the scorers agree inside it, and how often the score
prefers a page to a damaged copy of it.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.audit.agreement import best, between_share, group_auc, rank_agreement, wilson
from fineweb_mask.models.audit.damage import damaged
from fineweb_mask.models.columns import is_nested
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.quality.combine import combine_scores, with_raw
from fineweb_mask.models.quality.registry import columns_of
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import ROW, SOURCE_ROW
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.models.settings.quality import ClassesScorerSettings, QualitySettings
from fineweb_mask.tasks.audit.score_page import DAMAGE, DECIDES, LEAST, PAGES_OF_GROUP, score_page
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.scorers import QualityModel, load_models, score_columns
from fineweb_mask.tasks.reporting.page import PageJob
from fineweb_mask.tasks.reporting.samples import DocumentRef, documents_at, evenly_spaced
from fineweb_mask.tasks.storage.parquet import read_schema, read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_SHARDS = 64
MOST_DOCUMENTS = 1_000_000
"""Whose scores are read."""
MOST_GROUPS = 1_000
"""Values of the column, of which more are no groups."""
FIRST_SHARDS = 4
"""In which the values of the column are counted before any work."""
PAGES = 1_000
"""Pages that are damaged, of all groups together."""
LONGEST = 20_000
"""Characters of a page that is damaged."""
MOST_BETWEEN, MOST_AUC = 0.25, 0.75
"""Share of the variance between groups, and AUC of the group alone, above which a score mostly says the group."""
CONSTANT = 0.1
"""Share of a score's deviation below which it is nearly constant inside a group."""
LEAST_AGREEMENT = 0.1
"""Rank correlation of the scorers below which they do not agree on a group."""
NO_GROUPS = {ROW.name, SOURCE_ROW.name, "text", "content_hash", "id", "quality"}
"""Columns that are not named to a user who looks for one of groups."""


class ScoreCheckJob(PageJob):
    """Measure the scores of a workspace inside the groups of a column."""

    stage: ClassVar[Stage] = Stage("score_check", version=1, folders=("score-check",))
    shards: list[ShardFiles]  # documents and scores
    models: list[QualityModel]
    statistics: StageFile  # of the scores
    settings: QualitySettings
    by: str
    pages: int = PAGES

    @property
    def name(self) -> str:
        """The name of the page."""
        return self.stage.folders[0]

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return any(model.settings.kind not in {"fasttext", "column", "sidecar"} for model in self.models)

    @property
    def names(self) -> list[str]:
        """The scores that are measured: the quality, and those that it is made of, if these say anything else."""
        scorers = [
            one.name for one in self.settings.scorers if one.weight and not isinstance(one, ClassesScorerSettings)
        ]
        return [DECIDES, *(scorers if len(scorers) > 1 or self.settings.by else [])]

    def depends_on(self) -> Dependencies:
        """Return the column, how many pages are damaged, and the fingerprints of the documents and the scores."""
        return Dependencies(
            settings=[self.by, self.pages, self.settings.by],
            inputs=[[shard.documents.fingerprint, shard.scores.fingerprint] for shard in self.shards],
        )


class Scored(NamedTuple):
    """Documents of some shards, their groups and scores."""

    places: list[DocumentRef]  # (n,) ascending
    names: list[str]  # of the groups, the largest first
    groups: NDArray[np.int64]  # (n,) places in `names`
    scores: dict[str, NDArray[np.float64]]  # (n,) by name
    population: int  # documents of the whole corpus


@stage_task
def score_check(job: ScoreCheckJob) -> None:
    """Measure the scores in every group, and write the page; `details` are its metrics.

    Raises
    ------
    DataError
        If the documents have no such column, it has too many values, or no group is large enough.
    """
    found = _read(job)
    preferences = _preferences(job, found)
    details = measured(job, found, preferences)
    job.write(score_page(details), {"rows": len(found.places), **details})


def check_groups(workspace: Workspace, shards: Sequence[ShardFiles], by: str) -> None:
    """Check that some documents have a column, and in the first shards that do, not too many values of it.

    Raises
    ------
    DataError
        If not; the message names the columns that there are.
    """
    if by == "text":
        raise DataError(f"--by text: {TEXT_IS_NO_GROUP}")
    known, labels = dict[str, None](), list[pa.StringArray]()
    for place in evenly_spaced(len(shards), MOST_SHARDS):
        with local_copies():
            kinds = dict.fromkeys(_kinds(workspace, shards[place]))
        if by in kinds:
            labels.append(labels_of(workspace, shards[place], by))
            counted(labels, by)
        if len(labels) == FIRST_SHARDS:
            break
        known |= dict.fromkeys(kinds)
    if labels:
        return
    names = ", ".join(name for name in known if name not in NO_GROUPS)
    raise DataError(f"--by {by}: no document has a group there: name one of {names}")


@local_copies()
def labels_of(workspace: Workspace, shard: ShardFiles, by: str) -> pa.StringArray:
    """Return the group of each document of a shard, (n,): a column of the documents or of their scores; null is ""."""
    file = _kinds(workspace, shard).get(by)
    if file is None:
        return pa.array([""] * shard.rows, pa.string())
    return read_table(file, columns=[by])[by].cast(pa.string()).fill_null("").combine_chunks()


def _kinds(workspace: Workspace, shard: ShardFiles) -> dict[str, Path]:
    """Return the columns of a shard that may have groups, and the file of each."""
    files = [workspace.resolve(file) for file in (shard.documents, shard.scores)]
    return {field.name: file for file in files for field in read_schema(file) if not is_nested(field.type)}


def counted(labels: Sequence[pa.StringArray], by: str) -> list[dict[str, Any]]:
    """Return the different labels and their counts, as `values` and `counts`.

    Raises
    ------
    DataError
        If there are too many.
    """
    counts: list[dict[str, Any]] = pa.chunked_array(labels, pa.string()).value_counts().to_pylist()
    if len(counts) > MOST_GROUPS:
        raise DataError(
            f"--by {by}: it has {len(counts):,} values in {sum(map(len, labels)):,} documents, which are no groups (at "
            f"most {MOST_GROUPS:,} are): name a column with fewer, such as dump or language"
        )
    return counts


def _read(job: ScoreCheckJob) -> Scored:
    """Return the groups and scores of a sample of the documents.

    Raises
    ------
    DataError
        See `score_check`.
    """
    check_groups(job.workspace, job.shards, job.by)
    chosen = evenly_spaced(len(job.shards), MOST_SHARDS)
    step = max(1, -(-sum(job.shards[place].rows for place in chosen) // MOST_DOCUMENTS))
    labels, scores, places = list[pa.Array](), list[pa.Table](), list[DocumentRef]()
    for place in track("shards", list(chosen), part=(0, 0.3)):
        raise_if_stopped()
        shard = job.shards[place]
        with local_copies():
            values = labels_of(job.workspace, shard, job.by)
            numbers = read_table(job.workspace.resolve(shard.scores), columns=job.names)
        rows = np.arange(0, shard.rows, step)
        labels.append(values.take(rows))
        scores.append(numbers.take(rows))
        places += [DocumentRef(place, int(row)) for row in rows]
    counts = counted(labels, job.by)
    counts.sort(key=lambda one: (-one["counts"], one["values"]))
    large = [one["values"] for one in counts if one["counts"] >= LEAST]
    if len(large) < 2:
        raise DataError(
            f"--by {job.by}: {len(large)} of its {len(counts)} values have {LEAST} documents or more: at least two are "
            "needed to compare; name another column"
        )
    place_of = {name: place for place, name in enumerate(large)}
    groups = np.array([place_of.get(value, len(large)) for part in labels for value in part.to_pylist()])
    table = pa.concat_tables(scores)
    return Scored(
        places,
        large,
        groups,
        {name: table[name].to_numpy().astype(np.float64) for name in job.names},
        sum(shard.rows for shard in job.shards),
    )


Preferences = dict[int, dict[str, dict[str, list[float]]]]
"""By group, score and damage: 1 for a page that is preferred to its damaged copy, 0 for one that is not, 0.5 a tie."""


def _preferences(job: ScoreCheckJob, found: Scored) -> Preferences:
    """Score damaged copies of pages of every group; scores that do not read the text stay those of the page."""
    scorers = {
        name: scorer
        for name, scorer in load_models(job.workspace, job.models).items()
        if name in {one.settings.name for one in job.models if not isinstance(one.settings, ClassesScorerSettings)}
        and list(columns_of(scorer)) == ["text"]
    }
    if not scorers:
        return {}
    preferences: Preferences = {}
    devices = (getattr(scorer, "device", "cpu") for scorer in scorers.values())
    with gpu_slot(next((device for device in devices if device != "cpu"), "cpu")):
        for group, rows in track("groups", list(_drawn(job, found)), part=(0.3, 1)):
            raise_if_stopped()
            preferences[group] = _of_group(job, found, scorers, group, rows)
    return preferences


def _drawn(job: ScoreCheckJob, found: Scored) -> Iterator[tuple[int, list[int]]]:
    """Yield groups, each with places of some of its documents, ascending."""
    of_each = min(PAGES_OF_GROUP, max(1, job.pages // len(found.names)))
    dice = np.random.default_rng(0)
    for group in range(min(len(found.names), job.pages)):
        members = np.flatnonzero(found.groups == group)
        yield group, sorted(dice.choice(members, min(of_each, len(members)), replace=False).tolist())


def _of_group(
    job: ScoreCheckJob, found: Scored, scorers: Mapping[str, Any], group: int, rows: list[int]
) -> dict[str, dict[str, list[float]]]:
    columns = ["text", *([job.settings.by] if job.settings.by else [])]
    pages = documents_at(job.workspace, job.shards, [found.places[row] for row in rows], columns)
    texts = [str(page["text"])[:LONGEST] for page in pages]
    copies = [damaged(text, random.Random(place)) for place, text in zip(rows, texts, strict=True)]  # noqa: S311
    kinds = list(copies[0])
    every = [*texts, *(copy[kind] for kind in kinds for copy in copies)]
    reads_arrow = {name: one for name, one in scorers.items() if one.reads_arrow}
    others = {name: one for name, one in scorers.items() if name not in reads_arrow}

    def place(position: int) -> str:
        return f"a page of {found.names[group]!r}, {position}"

    scores = score_columns(reads_arrow, {"text": pa.array(every, pa.large_string())}, place)
    scores |= score_columns(others, {"text": every}, place)
    scores |= {
        name: np.tile(found.scores[name][rows].astype(np.float32), len(kinds) + 1)
        for name in job.names
        if name not in scores and name != DECIDES
    }
    scores = {name: scores[name] for one in job.settings.scorers if (name := one.name) in scores}
    statistics = with_raw(job.statistics.details, set(job.settings.raw))
    weights = {one.name: one.weight for one in job.settings.scorers}
    by = [str(page.get(job.settings.by or "") or "") for page in pages] * (len(kinds) + 1)
    combined = combine_scores(
        scores, weights, statistics["statistics"], job.settings.combine, by, statistics.get("by_group")
    )
    scores[DECIDES] = combined
    answers: dict[str, dict[str, list[float]]] = {}
    for name in job.names:
        if name not in scorers and name != DECIDES:
            continue
        whole, *broken = np.split(scores[name].astype(np.float64), len(kinds) + 1)
        answers[name] = {
            kind: ((np.sign(whole - copy) + 1) / 2).tolist() for kind, copy in zip(kinds, broken, strict=True)
        }
    return answers


def measured(job: ScoreCheckJob, found: Scored, preferences: Preferences) -> dict[str, Any]:
    """Return what is said of every score and every group, what to worry about, and what to do, as JSON values."""
    is_best = {name: best(values) for name, values in found.scores.items()}
    whole = {name: float(values.std()) for name, values in found.scores.items()}
    scorers = [name for name in job.names if name != DECIDES]
    groups = list[dict[str, Any]]()
    for place, name in enumerate(found.names):
        inside = found.groups == place
        asked = preferences.get(place, {})
        groups.append(
            {
                "group": name,
                "documents": int(inside.sum()),
                "share": float(inside.mean()),
                "agreement": rank_agreement(np.stack([found.scores[one][inside] for one in scorers], axis=1))
                if len(scorers) > 1
                else None,
                "scores": {
                    score: {
                        "mean": float((values[inside].mean() - values.mean()) / (whole[score] or 1)),
                        "deviation": float(values[inside].std() / (whole[score] or 1)),
                        "of_the_best": float(is_best[score][inside].sum() / max(1, is_best[score].sum())),
                        "prefers_page": {kind: float(np.mean(answers)) for kind, answers in asked[score].items()}
                        if score in asked
                        else {},
                        "prefers_damage": {
                            kind: wilson(answers.count(0.0), len(answers)) for kind, answers in asked[score].items()
                        }
                        if score in asked
                        else {},
                    }
                    for score, values in found.scores.items()
                },
            }
        )
    scores = {
        name: {
            "deviation": whole[name],
            "between_groups": between_share(values, found.groups),
            "group_auc": group_auc(values, found.groups),
        }
        for name, values in found.scores.items()
    }
    details = {
        "by": job.by,
        "documents": len(found.places),
        "population": found.population,
        "small_groups": int((found.groups == len(found.names)).sum()),
        "pages": sum(len(next(iter(next(iter(one.values())).values()))) for one in preferences.values() if one),
        "scores": scores,
        "groups": groups,
    }
    return details | dict(zip(("warnings", "advice"), _judged(job, details), strict=True))


def _judged(job: ScoreCheckJob, details: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return what to worry about, and what to do about it."""
    warnings, advice, groups = list[str](), list[str](), details["groups"]
    one = details["scores"][DECIDES]
    if one["between_groups"] > MOST_BETWEEN or (one["group_auc"] or 0) > MOST_AUC:
        auc = one["group_auc"]
        told = "" if auc is None else f", and {job.by} alone tells the best tenth with an AUC of {auc:.2f}"
        warnings.append(
            f"{DECIDES} mostly says the {job.by}: {one['between_groups']:.0%} of its variance is between them{told}"
        )
        if job.settings.by != job.by:
            advice.append(
                f"set quality.by: {job.by}, so that a document is compared with others of its {job.by}; or label "
                "documents of every group, if some groups are better as a whole"
            )
    unsure = list[str]()
    for name in details["scores"]:
        if flat := [group["group"] for group in groups if group["scores"][name]["deviation"] < CONSTANT]:
            warnings.append(f"{name} is nearly constant inside {some(flat)}: its order there is noise")
            unsure += flat
    known = [group for group in groups if group["agreement"] is not None]
    if apart := [group["group"] for group in known if group["agreement"] < LEAST_AGREEMENT]:
        warnings.append(f"the scores do not agree inside {some(apart)} (rank correlation below {LEAST_AGREEMENT})")
        unsure += apart
    if unsure:
        unsure = list(dict.fromkeys(unsure))
        advice.append(f"label 200 documents of {some(unsure)} and train a score on them: fineweb-mask train-quality")
    preferred = [
        f"{name} prefers a page with {said} to the page: {some(where)}"
        for name in details["scores"]
        for kind, said in DAMAGE.items()
        if (where := _prefers_damage(groups, name, kind))
    ]
    if preferred:
        advice.append(
            "drop damaged pages before they are scored (ingest.filters), or add a scorer that reads whole sentences"
        )
    return [*warnings, *preferred], advice or ["nothing needs to be changed"]


def _prefers_damage(groups: list[dict[str, Any]], score: str, kind: str) -> list[str]:
    """Return the groups, each with a share, in which a score surely prefers more than half of the damaged copies."""
    found = ((group["group"], group["scores"][score]["prefers_damage"].get(kind)) for group in groups)
    return [f"{name or '(empty)'} {interval.share:.0%}" for name, interval in found if interval and interval.low > 0.5]


NAMED = 5


def some(names: list[str]) -> str:
    """Return the first names and how many others there are.

    >>> some(["a", "b"]), some([str(number) for number in range(7)])
    ('a, b', '0, 1, 2, 3, 4 and 2 others')
    """
    shown = ", ".join(name or "(empty)" for name in names[:NAMED])
    return f"{shown} and {len(names) - NAMED:,} others" if len(names) > NAMED else shown
