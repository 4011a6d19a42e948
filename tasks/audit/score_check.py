"""Ask of every group of documents whether its scores say more than its name, without any label.

A score that mostly recognises the source cannot order the documents inside it. For each group: how much of the score's
deviation is left inside it, its share of the best tenth, whether the scorers agree inside it, and how often the score
prefers a page to a damaged copy of it.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.audit.agreement import best, between_share, group_auc, rank_agreement, wilson
from fineweb_mask.models.audit.damage import damaged
from fineweb_mask.models.columns import is_nested
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.quality.combine import combine_scores
from fineweb_mask.models.quality.registry import columns_of
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import ROW, SOURCE_ROW
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.models.settings.quality import QualitySettings, TransformerSettings
from fineweb_mask.tasks.audit.score_page import DAMAGE, DECIDES, LEAST, PAGES_OF_GROUP, score_page
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.scorers import QualityModel, load_models, score_columns
from fineweb_mask.tasks.reporting.page import PageJob, some
from fineweb_mask.tasks.reporting.samples import DocumentRef, documents_at, evenly_spaced
from fineweb_mask.tasks.selection.inputs.shard_documents import read_groups
from fineweb_mask.tasks.storage.parquet import read_schema, read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
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
        return any(isinstance(model.settings, TransformerSettings) for model in self.models)

    @property
    def names(self) -> list[str]:
        """The scores that are measured: the quality, and those that it is made of, if these say anything else."""
        scorers = [one.name for one in self.settings.scorers if one.weight]
        return [DECIDES, *(scorers if len(scorers) > 1 or self.settings.by else [])]

    def depends_on(self) -> Dependencies:
        """Return the column, how many pages are damaged, and the fingerprints of the documents and the scores."""
        files = [(shard.documents, shard.scores) for shard in self.shards]
        return Dependencies(settings=[self.by, self.pages, self.settings.by], inputs=files)


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
    known, labels = dict[str, None](), list[NDArray[np.object_]]()
    for place in evenly_spaced(len(shards), MOST_SHARDS):
        with local_copies():
            kinds = _kinds(workspace, shards[place])
            if by in kinds:
                labels.append(read_groups(workspace, shards[place], by))
                counted(labels, by)
        if len(labels) == FIRST_SHARDS:
            break
        known |= dict.fromkeys(kinds)
    if labels:
        return
    names = ", ".join(name for name in known if name not in NO_GROUPS)
    raise DataError(f"--by {by}: no document has a group there: name one of {names}")


def _kinds(workspace: Workspace, shard: ShardFiles) -> list[str]:
    """Return the columns of a shard's documents and scores that may have groups."""
    schemas = [read_schema(workspace.resolve(file)) for file in (shard.documents, shard.scores)]
    return [field.name for schema in schemas for field in schema if not is_nested(field.type)]


def counted(labels: Sequence[Iterable[str]], by: str) -> Counter[str]:
    """Count the different labels of several files.

    Raises
    ------
    DataError
        If there are too many.
    """
    counts = Counter(chain.from_iterable(labels))
    if len(counts) > MOST_GROUPS:
        raise DataError(
            f"--by {by}: it has {len(counts):,} values in {counts.total():,} documents, which are no groups (at "
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
    labels, scores, places = list[NDArray[np.object_]](), list[pa.Table](), list[DocumentRef]()
    for place in track("shards", list(chosen), part=(0, 0.3)):
        raise_if_stopped()
        shard = job.shards[place]
        rows = np.arange(0, shard.rows, step)
        with local_copies():
            labels.append(read_groups(job.workspace, shard, job.by)[rows])
            scores.append(read_table(job.workspace.resolve(shard.scores), columns=job.names).take(rows))
        places += [DocumentRef(place, int(row)) for row in rows]
    counts = counted(labels, job.by)
    large = sorted((name for name, n in counts.items() if n >= LEAST), key=lambda name: (-counts[name], name))
    if len(large) < 2:
        raise DataError(
            f"--by {job.by}: {len(large)} of its {len(counts)} values have {LEAST} documents or more: at least two are "
            "needed to compare; name another column"
        )
    place_of = {name: place for place, name in enumerate(large)}
    table = pa.concat_tables(scores)
    return Scored(
        places,
        large,
        np.array([place_of.get(value, len(large)) for value in chain.from_iterable(labels)]),
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
        if list(columns_of(scorer)) == ["text"]
    }
    if not scorers:
        return {}
    of_each, dice = min(PAGES_OF_GROUP, max(1, job.pages // len(found.names))), np.random.default_rng(0)
    members = [np.flatnonzero(found.groups == group) for group in range(min(len(found.names), job.pages))]
    drawn = [sorted(dice.choice(own, min(of_each, len(own)), replace=False).tolist()) for own in members]
    devices = (getattr(scorer, "device", "cpu") for scorer in scorers.values())
    preferences: Preferences = {}
    with gpu_slot(next((device for device in devices if device != "cpu"), "cpu")):
        for group, rows in track("groups", list(enumerate(drawn)), part=(0.3, 1)):
            raise_if_stopped()
            preferences[group] = _of_group(job, found, scorers, group, rows)
    return preferences


def _of_group(
    job: ScoreCheckJob, found: Scored, scorers: Mapping[str, Any], group: int, rows: list[int]
) -> dict[str, dict[str, list[float]]]:
    columns = ["text", *([job.settings.by] if job.settings.by else [])]
    pages = documents_at(job.workspace, job.shards, [found.places[row] for row in rows], columns)
    texts = [str(page["text"])[:LONGEST] for page in pages]
    copies = [damaged(text, random.Random(place)) for place, text in zip(rows, texts, strict=True)]  # noqa: S311
    every = [*texts, *(copy[kind] for kind in DAMAGE for copy in copies)]

    def place(position: int) -> str:
        return f"a page of {found.names[group]!r}, {position}"

    arrow = {name: one for name, one in scorers.items() if one.reads_arrow}
    others = {name: one for name, one in scorers.items() if not one.reads_arrow}
    read = score_columns(arrow, {"text": pa.array(every, pa.large_string())}, place)
    read |= score_columns(others, {"text": every}, place)
    scores = {
        one.name: read[one.name]
        if one.name in read
        else np.tile(found.scores[one.name][rows].astype(np.float32), len(DAMAGE) + 1)
        for one in job.settings.scorers
        if one.name in read or one.name in found.scores
    }
    statistics = job.statistics.details
    scores[DECIDES] = combine_scores(
        scores,
        {one.name: one.weight for one in job.settings.scorers},
        statistics["statistics"],
        job.settings.combine,
        [str(page.get(job.settings.by or "") or "") for page in pages] * (len(DAMAGE) + 1),
        statistics.get("by_group"),
    )
    answers: dict[str, dict[str, list[float]]] = {}
    for name in job.names:
        if name in scorers or name == DECIDES:
            whole, *broken = np.split(scores[name].astype(np.float64), len(DAMAGE) + 1)
            answers[name] = {
                kind: ((np.sign(whole - copy) + 1) / 2).tolist() for kind, copy in zip(DAMAGE, broken, strict=True)
            }
    return answers


def measured(job: ScoreCheckJob, found: Scored, preferences: Preferences) -> dict[str, Any]:
    """Return what is said of every score and every group, what to worry about, and what to do, as JSON values."""
    is_best = {name: best(values) for name, values in found.scores.items()}
    whole = {name: float(values.std()) for name, values in found.scores.items()}
    scorers = [name for name in job.names if name != DECIDES]

    def inside(score: str, members: NDArray[np.bool_], asked: Mapping[str, list[float]]) -> dict[str, Any]:
        values, scale = found.scores[score], whole[score] or 1
        return {
            "mean": float((values[members].mean() - values.mean()) / scale),
            "deviation": float(values[members].std() / scale),
            "of_the_best": float(is_best[score][members].sum() / max(1, is_best[score].sum())),
            "prefers_page": {kind: float(np.mean(answers)) for kind, answers in asked.items()},
            "prefers_damage": {kind: wilson(answers.count(0.0), len(answers)) for kind, answers in asked.items()},
        }

    groups = list[dict[str, Any]]()
    for place, name in enumerate(found.names):
        members, asked = found.groups == place, preferences.get(place, {})
        groups.append(
            {
                "group": name,
                "documents": int(members.sum()),
                "share": float(members.mean()),
                "agreement": rank_agreement(np.stack([found.scores[one][members] for one in scorers], axis=1))
                if len(scorers) > 1
                else None,
                "scores": {score: inside(score, members, asked.get(score, {})) for score in found.scores},
            }
        )
    details = {
        "by": job.by,
        "documents": len(found.places),
        "population": found.population,
        "small_groups": int((found.groups == len(found.names)).sum()),
        "pages": sum(len(next(iter(next(iter(one.values())).values()))) for one in preferences.values() if one),
        "scores": {
            name: {
                "deviation": whole[name],
                "between_groups": between_share(values, found.groups),
                "group_auc": group_auc(values, found.groups),
            }
            for name, values in found.scores.items()
        },
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
    preferred = list[str]()
    for name, (kind, said) in product(details["scores"], DAMAGE.items()):
        shares = [(one["group"], one["scores"][name]["prefers_damage"].get(kind)) for one in groups]
        # in which a score surely prefers more than half of the damaged copies
        where = [f"{group or '(empty)'} {share.share:.0%}" for group, share in shares if share and share.low > 0.5]
        if where:
            preferred.append(f"{name} prefers a page with {said} to the page: {some(where)}")
    if preferred:
        advice.append(
            "drop damaged pages before they are scored (ingest.filters), or add a scorer that reads whole sentences"
        )
    return [*warnings, *preferred], advice or ["nothing needs to be changed"]
