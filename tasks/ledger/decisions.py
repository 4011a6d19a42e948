"""Tell what every stage decided on single documents, with the numbers by which it did."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import duckdb
import numpy as np
from pydantic import BaseModel

from fineweb_mask.models.analysis.vectors import unit_rows
from fineweb_mask.models.documents import CHARS_PER_TOKEN
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import vectors_of
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.catalog.fates import NOT_SELECTED, SELECTED, gathered
from fineweb_mask.tasks.catalog.spilling import open_database
from fineweb_mask.tasks.reporting.page import Card, Section, Side
from fineweb_mask.tasks.reporting.samples import SAMPLED_SHARDS, evenly_spaced
from fineweb_mask.tasks.selection.inputs.shard_documents import read_vectors
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.references import EXCLUDED, NEAR, REPEATED, SAME_URL, ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

KEPT, DROPPED, UNDECIDED = "kept", "dropped", "not selected from yet"
BY_GAIN = "mean_field"
"""The solver whose inclusion is 0 of those documents only that may not be selected."""
TOLD = ("id", "url", "n_chars", "token_count")
SHOWN, SHOWN_CHARACTERS = 5, 200
"""Notable documents of each kind, and how much of each is shown."""

NAMED = "FROM fates WHERE id IN (SELECT name FROM asked) OR url IN (SELECT name FROM asked) ORDER BY source_row"
NOTABLE = """
    (FROM {of} WHERE stage = 'select' AND NOT selected ORDER BY quality DESC, shard, row LIMIT {each})
    UNION ALL (FROM {of} WHERE selected ORDER BY quality, shard, row LIMIT {each})
    """
"""The best documents that are left out, and the worst that are kept."""

RANKED = """
    WITH all_of AS (SELECT *, if(isnan(inclusion), '-infinity'::FLOAT, inclusion) AS wanted FROM fates),
         own AS (SELECT *, if(isnan(inclusion), '-infinity'::FLOAT, inclusion) AS wanted FROM found),
         pairs AS (
             SELECT own.shard AS of_shard, own.row AS of_row, rivals.selected, {mass} AS mass,
                    rivals.quality < own.quality AS is_worse,
                    (rivals.wanted, own.shard, own.row) >= (own.wanted, rivals.shard, rivals.row) AS is_before
             FROM all_of AS rivals JOIN own USING (block)
         )
    SELECT of_shard, of_row, count(*) AS rivals, count(*) FILTER (selected) AS taken, sum(mass) AS mass_of_all,
           count(*) FILTER (is_before) AS rank, sum(mass) FILTER (is_before) AS mass,
           count(*) FILTER (is_worse) AS worse
    FROM pairs GROUP BY ALL
    """
"""Where documents are among those of a shard that are in their blocks."""

PLACED = """
    SELECT found.*, _rank
    FROM found LEFT JOIN (
        SELECT of_shard, of_row, sum(COLUMNS(* EXCLUDE (of_shard, of_row)))::BIGINT FROM ranked GROUP BY ALL
    ) AS _rank ON shard = of_shard AND row = of_row
    ORDER BY found.rowid
    """

TEXT = (
    "The documents of the highest quality that are not selected, and those of the lowest that are{of}, with what "
    "decided. The same of any document: fineweb-mask why, with the workspace's folder and a URL or id."
)

Place = tuple[str, int]
"""A document: its shard and row."""


@dataclass(frozen=True)
class Decision:
    """What one stage decided on a document."""

    stage: str
    decision: str
    reason: str


class Explanation(BaseModel):
    """Every stage's decision on one document."""

    shard: str
    row: int | None = None  # of the shard's documents; None: ingest dropped it
    source_row: int
    id: str
    url: str | None = None
    outcome: str  # selected, not selected, not selected from yet or dropped
    decisions: list[Decision]
    numbers: dict[str, Any] = {}  # by which they were made


class Corpus(NamedTuple):
    """What the last run of a workspace made."""

    workspace: Workspace
    settings: PipelineSettings
    shards: list[ShardFiles]

    @property
    def scores(self) -> list[str]:
        """The names of the scores, the quality first."""
        names = (scorer.name for scorer in self.settings.quality.scorers)
        return ["quality", *(name for name in names if name != "quality")]

    def gather(self, connection: duckdb.DuckDBPyConnection, query: str, table: str, columns: Sequence[str]) -> None:
        """Create a table of what a query finds in the view `fates` of each shard; see `gathered`."""
        gathered(connection, self.workspace, self.shards, columns, query, table)

    def rivals(self, found: Sequence[dict[str, Any]]) -> Self:
        """Return it with the shards that documents of it are selected together with: those of a block."""
        theirs = {row["shard"] for row in found}
        groups = {shard.masks.fingerprint for shard in self.shards if shard.name in theirs}
        return self._replace(shards=[shard for shard in self.shards if shard.masks.fingerprint in groups])

    def values(self, shard: str, row: int, columns: Sequence[str]) -> dict[str, Any]:
        """Return columns of a document."""
        [documents] = (one.documents for one in self.shards if one.name == shard)
        return dict(take_rows(self.workspace.resolve(documents), np.array([row]), columns).to_pylist()[0])

    def name(self, shard: str, row: int) -> str:
        """Return what a document is called in a sentence."""
        found = self.values(shard, row, ["url", "id"])
        return f"{found['url'] or found['id']} ({shard} row {row:,})"


def explain(corpus: Corpus, names: Sequence[str]) -> list[Explanation]:
    """Return every stage's decision on the documents of ids or URLs, in the order of the shards."""
    with open_database() as connection:
        connection.execute("CREATE TABLE asked AS SELECT unnest($names::VARCHAR[]) AS name", {"names": list(names)})
        corpus.gather(connection, NAMED, "found", [*TOLD, *corpus.scores])
        return _explained(connection, corpus)


def notable_documents(corpus: Corpus) -> list[Section]:
    """Return a section on the best left out and the worst kept of a sample; none if all have the same quality."""
    sample = [corpus.shards[place] for place in evenly_spaced(len(corpus.shards), SAMPLED_SHARDS)]
    with open_database() as connection:
        some = corpus._replace(shards=sample)
        some.gather(connection, NOTABLE.format(of="fates", each=SHOWN), "best", [*TOLD, *corpus.scores])
        connection.execute(f"CREATE TABLE found AS {NOTABLE.format(of='best', each=SHOWN)}")
        found = sorted(_explained(connection, corpus), key=_quality)
    if len({_quality(one) for one in found}) < 2:
        return []
    kinds = {
        "Best left out": [one for one in found[::-1] if one.outcome != SELECTED],
        "Worst kept": [one for one in found if one.outcome == SELECTED],
    }
    sides = [Side(title, [_card(corpus, one) for one in some]) for title, some in kinds.items() if some]
    of = "" if len(sample) == len(corpus.shards) else f" of {len(sample)} shards"
    return [Section("Best left out, worst kept", [TEXT.format(of=of)], sides=sides)]


def _quality(one: Explanation) -> float:
    return float(one.numbers["quality"])


def _card(corpus: Corpus, one: Explanation) -> Card:
    """Return the beginning of a document, with its quality, and what decided about it."""
    assert one.row is not None  # noqa: S101 - ingest kept it
    text = " ".join(corpus.values(one.shard, one.row, ["text"])["text"][: 2 * SHOWN_CHARACTERS].split())
    note = f"quality {_quality(one):+.2f}; {one.decisions[-1].reason}"
    beginning = text[:SHOWN_CHARACTERS] + (" …" if len(text) > SHOWN_CHARACTERS else "")
    return Card(one.url or one.id, note, beginning)


def _explained(connection: duckdb.DuckDBPyConnection, corpus: Corpus) -> list[Explanation]:
    """Return every stage's decision on the documents in the table `found`."""
    found = connection.sql("SELECT shard, row, block FROM found").to_arrow_table().to_pylist()
    if not found:
        return []
    rivals = corpus.rivals(found)
    is_of_documents = corpus.settings.selection.budget_by == "documents"
    mass = "1" if is_of_documents else f"coalesce(rivals.token_count, ceil(rivals.n_chars / {CHARS_PER_TOKEN}), 0)"
    rivals.gather(connection, RANKED.format(mass=mass), "ranked", ["n_chars", "token_count", "quality"])
    near = _nearest_selected(rivals, [row for row in found if row["block"] is not None])
    explained = []
    for row in connection.sql(PLACED).to_arrow_table().to_pylist():
        numbers = {name: row[name] for name in (*corpus.scores, "inclusion", "similarity") if row[name] is not None}
        decisions = list(_decisions(corpus, row, near.get((row["shard"], row["row"])), numbers))
        last = decisions[-1].decision
        explained.append(
            Explanation(
                **{name: row[name] for name in ("shard", "row", "source_row", "id", "url")},
                outcome=UNDECIDED if last == KEPT else last,
                decisions=decisions,
                numbers=numbers,
            )
        )
    return explained


def _decisions(
    corpus: Corpus, row: dict[str, Any], near: tuple[Place, float] | None, numbers: dict[str, Any]
) -> Iterator[Decision]:
    """Yield the stages' decisions on a document; what they are made by is added to `numbers`."""
    if row["stage"] == "ingest":
        yield Decision("ingest", DROPPED, _why_dropped(corpus.settings, row))
        return
    tokens = "" if row["token_count"] is None else f", {row['token_count']:,} tokens"
    yield Decision("ingest", KEPT, f"{row['n_chars']:,} characters{tokens}")
    if row["stage"] == "dedup":
        yield Decision("dedup", DROPPED, _copied(corpus, row, numbers))
        return
    if next(shard for shard in corpus.shards if shard.name == row["shard"]).duplicates.fingerprint:
        is_compared = corpus.settings.ingest.compares_shards
        yield Decision("dedup", KEPT, "no copy of another document" if is_compared else "copies were not looked for")
    if row["quality"] is not None:
        yield Decision("score", KEPT, "; ".join(f"{name} {row[name]:.2f}" for name in corpus.scores))
    if row["stage"] == "embed":
        yield Decision("embed", DROPPED, "bad_vector: the encoder gives its text no vector")
    elif row["stage"] == "select":
        yield Decision("select", SELECTED if row["selected"] else NOT_SELECTED, _judged(corpus, row, near, numbers))


def _why_dropped(settings: PipelineSettings, row: dict[str, Any]) -> str:
    """Return ingest's reason with what is known of the row, and the setting that it is of, in words."""
    ingest, reason = settings.ingest, row["reason"]
    more = {
        "too_short": f"ingest.min_chars is {ingest.min_chars:,}",
        "wrong_language": f"ingest.languages is {', '.join(ingest.languages)}",
        "low_language_score": f"ingest.min_language_score is {ingest.min_language_score}",
        "duplicate": "an earlier row of its file has the same text",
        "known": f"{row['twin']} of ingest.against has its text",
        "excluded": "ingest.exclude names it, and it is erased",
        "benchmark": f"it holds {row['twin']} of ingest.decontaminate",
    }
    return f"{reason}: {more[reason]}" if reason in more else str(reason)


def _copied(corpus: Corpus, row: dict[str, Any], numbers: dict[str, Any]) -> str:
    """Return of which document one is a copy, or that it is excluded."""
    said = {
        EXCLUDED: "ingest.exclude names it",
        REPEATED: "the same text as",
        SAME_URL: "the URL of",
        NEAR: f"near-duplicate ({row['similarity'] or 0:.2f} of the shingles) of",
    }[row["reason"]]
    if (shard := row["twin_shard"]) is None:
        return said
    if all(one.name != shard for one in corpus.shards):
        return f"{said} another corpus"
    numbers |= {"kept_shard": shard, "kept_row": row["twin_row"]}
    return f"{said} {corpus.name(shard, row['twin_row'])}"


def _judged(corpus: Corpus, row: dict[str, Any], near: tuple[Place, float] | None, numbers: dict[str, Any]) -> str:
    """Return a document's rank, and the budget from which it would be selected."""
    settings, rank, is_selected = corpus.settings.selection, row["_rank"], row["selected"]
    limit = settings.near_duplicates
    numbers |= {"rank": rank["rank"], "of": rank["rivals"], "selected_of_them": rank["taken"]}
    numbers["better_than"] = rank["worse"] / rank["rivals"]
    parts = [
        f"rank {rank['rank']:,} of {rank['rivals']:,}, {rank['taken']:,} of which fill the budget; of better quality "
        f"than {numbers['better_than']:.0%} of them"
    ]
    is_like = near is not None and limit is not None and near[1] >= limit
    if not is_selected and limit is not None and (is_like or (settings.solver == BY_GAIN and row["inclusion"] == 0)):
        parts.append(
            f"a better document has a cosine of {limit:g} or more with it, so that it may not be selected "
            "(selection.near_duplicates)"
        )
    else:
        share = rank["mass"] / max(rank["mass_of_all"], 1)
        numbers["selected_from_ratio"] = round(share, 4)
        setting = "select_ratio" if settings.budget is None else "a budget of this share"
        parts.append(f"{'is' if is_selected else 'would be'} selected from {setting} {share:.2g}")
    if near is not None:
        (shard, place), cosine = near
        numbers |= {"nearest_selected_cosine": round(cosine, 4), "nearest_selected": [shard, place]}
        parts.append(f"the nearest selected document has a cosine of {cosine:.2f} with it: {corpus.name(shard, place)}")
    return "; ".join(parts)


def _nearest_selected(corpus: Corpus, asked: Sequence[dict[str, Any]]) -> dict[Place, tuple[Place, float]]:
    """Return the other selected document of the same block that is most like each, and the cosine."""
    shards, found = {shard.name: shard for shard in corpus.shards}, dict[Place, tuple[Place, float]]()
    files = [corpus.workspace.resolve(shards[row["shard"]].embeddings) for row in asked]
    own = [take_rows(file, np.array([row["row"]]), ["embedding"]) for file, row in zip(files, asked, strict=True)]
    vectors = [unit_rows(vectors_of(one)) for one in own]  # (1, d) each
    for name, shard in shards.items() if asked else ():
        masks = read_table(corpus.workspace.resolve(shard.masks))
        masks = masks.filter(masks["selected"])
        rows, blocks = masks["row"].to_numpy().astype(np.int64), masks["block"].to_numpy()
        for places, batch in read_vectors(corpus.workspace, shard, rows):
            raise_if_stopped()
            cosines = unit_rows(batch) @ np.concatenate(vectors).T  # (b, k)
            for column, row in enumerate(asked):
                place = (row["shard"], row["row"])
                is_other = (rows[places] != row["row"]) | (name != row["shard"])
                among = np.where(is_other & (blocks[places] == row["block"]), cosines[:, column], -np.inf)
                if (best := float(among.max())) > found.get(place, (None, -np.inf))[1]:
                    found[place] = (name, int(rows[places][among.argmax()])), best
    return found
