"""Tell what every stage decided on single documents, with the numbers by which it did."""

from collections.abc import Callable, Sequence
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
from fineweb_mask.tasks.catalog.quoting import identifier
from fineweb_mask.tasks.catalog.spilling import open_database
from fineweb_mask.tasks.selection.inputs.shard_documents import read_vectors
from fineweb_mask.tasks.workspace.references import EXCLUDED, SAME_URL, ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import documents_of, take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

KEPT, DROPPED, NOT_KNOWN, UNDECIDED = "kept", "dropped", "not known", "not selected from yet"
BY_GAIN = "mean_field"
"""The solver whose inclusion is 0 of those documents only that may not be selected."""
COUNTED = ("n_chars", "token_count", "language", "language_score")
TOLD = ("id", "url", "content_hash", *COUNTED)

NAMED = """
    FROM fates WHERE id IN (SELECT name FROM asked) OR url IN (SELECT name FROM asked) ORDER BY source_row
    """
NOTABLE = """
    (SELECT {columns} FROM {of} WHERE stage = 'select' AND NOT selected ORDER BY quality DESC, shard, row LIMIT {each})
    UNION ALL (SELECT {columns} FROM {of} WHERE selected ORDER BY quality, shard, row LIMIT {each})
    """
"""The best documents that are left out, and the worst that are kept."""

BELOW = """
    SELECT own.shard AS of_shard, own.row AS of_row, {below}, count(fates.quality) AS scored,
           count(*) FILTER (fates.twin_shard = own.shard AND fates.twin_row = own.row) AS copies
    FROM fates CROSS JOIN found AS own WHERE own.row IS NOT NULL GROUP BY ALL
    """
"""How many documents of a shard are worse than those that are asked for, and how many are copies of each."""

RANKED = """
    WITH rivals AS (SELECT *, if(isnan(inclusion), '-infinity'::FLOAT, inclusion) AS wanted, {mass} AS mass FROM fates),
         own AS (SELECT *, if(isnan(inclusion), '-infinity'::FLOAT, inclusion) AS wanted FROM found),
         pairs AS (
             SELECT own.shard AS of_shard, own.row AS of_row, rivals.selected, mass,
                    rivals.wanted > own.wanted OR rivals.wanted = own.wanted
                    AND (rivals.shard, rivals.row) <= (own.shard, own.row) AS before
             FROM rivals JOIN own USING (block)
         )
    SELECT of_shard, of_row, count(*) FILTER (before) AS rank, count(*) AS rivals, count(*) FILTER (selected) AS taken,
           sum(mass) FILTER (before) AS mass, sum(mass) AS mass_of_all
    FROM pairs GROUP BY ALL
    """
"""Where documents are among those of a shard that are in their blocks."""

SUMMED = "SELECT of_shard, of_row, sum(COLUMNS(* EXCLUDE (of_shard, of_row)))::BIGINT FROM {table} GROUP BY ALL"

RELATED = """
    SELECT shard, row, block, content_hash, selected FROM fates
    WHERE selected AND block IN (SELECT block FROM found) OR stage IS DISTINCT FROM 'dedup'
          AND content_hash IN (SELECT content_hash FROM found WHERE stage = 'dedup' AND twin_shard IS NULL)
    """
"""The selected documents of the blocks of those that are asked for, and what is kept of equal texts."""


class Decision(BaseModel):
    """What one stage decided on a document."""

    stage: str
    decision: str
    reason: str
    numbers: dict[str, Any] = {}


class Explanation(BaseModel):
    """Every stage's decision on one document."""

    shard: str
    row: int | None = None  # of the shard's documents; None: ingest dropped it
    source_row: int
    id: str
    url: str | None = None
    outcome: str  # selected, not selected, not selected from yet or dropped
    decisions: list[Decision]

    def numbers_of(self, stage: str) -> dict[str, Any]:
        """Return the numbers of a stage's decision."""
        return next((one.numbers for one in self.decisions if one.stage == stage), {})


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

    def only(self, is_wanted: Callable[[ShardFiles], bool]) -> Self:
        """Return it with some of its shards."""
        return self._replace(shards=[shard for shard in self.shards if is_wanted(shard)])

    def values(self, shard: str, row: int, columns: Sequence[str]) -> dict[str, Any]:
        """Return columns of a document."""
        [documents] = (one.documents for one in self.shards if one.name == shard)
        return dict(documents_of(self.workspace, documents, np.array([row]), columns).to_pylist()[0])

    def name(self, shard: str, row: int) -> str:
        """Return what a document is called in a sentence."""
        found = self.values(shard, row, ["url", "id"])
        return f"{found['url'] or found['id']} ({shard} row {row:,})"


def explain(corpus: Corpus, names: Sequence[str]) -> list[Explanation]:
    """Return every stage's decision on the documents of ids or URLs, in the order of the shards."""
    with open_database() as connection:
        connection.execute("CREATE TABLE asked AS SELECT unnest($names::VARCHAR[]) AS name", {"names": list(names)})
        corpus.gather(connection, NAMED, "found", [*TOLD, *corpus.scores])
        return _explained(connection, corpus, corpus)


def notable(corpus: Corpus, sample: Corpus, each: int) -> list[Explanation]:
    """Return every stage's decision on the best documents of a sample that are left out, and the worst that are kept.

    Those that are worse are counted in the sample, which has some of the shards.
    """
    columns = "shard, row, stage, selected, quality"
    with open_database() as connection:
        sample.gather(connection, NOTABLE.format(columns=columns, of="fates", each=each), "best", ["quality"])
        connection.execute(f"CREATE TABLE chosen AS {NOTABLE.format(columns=columns, of='best', each=each)}")
        names = {name for (name,) in connection.execute("SELECT DISTINCT shard FROM chosen").fetchall()}
        if not names:
            return []
        theirs = corpus.only(lambda shard: shard.name in names)
        theirs.gather(connection, "FROM fates SEMI JOIN chosen USING (shard, row)", "found", [*TOLD, *corpus.scores])
        return _explained(connection, corpus, sample)


def _explained(connection: duckdb.DuckDBPyConnection, corpus: Corpus, counted: Corpus) -> list[Explanation]:
    """Return every stage's decision on the documents in the table `found`; of all `counted`, how many are worse."""
    found = connection.sql("FROM found").to_arrow_table().to_pylist()
    if not found:
        return []
    quoted = [identifier(name) for name in corpus.scores]
    below = ", ".join(
        f"count(*) FILTER (fates.{name} < own.{name}) AS below_{place}" for place, name in enumerate(quoted)
    )
    counted.gather(connection, BELOW.format(below=below), "below", corpus.scores)
    is_of_documents = corpus.settings.selection.budget_by == "documents"
    mass = "1" if is_of_documents else f"coalesce(token_count, ceil(n_chars / {CHARS_PER_TOKEN}), 0)"
    theirs = {row["shard"] for row in found}
    groups = {shard.masks.fingerprint for shard in corpus.shards if shard.name in theirs}
    rivals = corpus.only(lambda shard: shard.masks.fingerprint in groups)  # those of a block are selected together
    rivals.gather(connection, RANKED.format(mass=mass), "ranked", ["n_chars", "token_count"])
    compared: dict[tuple[str, int], dict[str, int]] = {}
    for table in ("below", "ranked"):
        for row in connection.sql(SUMMED.format(table=table)).to_arrow_table().to_pylist():
            compared.setdefault((row["of_shard"], row["of_row"]), {}).update(row)
    is_repeated = any(row["reason"] == "duplicate" and row["stage"] == "dedup" for row in found)
    (corpus if is_repeated else rivals).gather(connection, RELATED, "related", ["content_hash"])
    repeated = "SELECT content_hash, shard, row FROM related WHERE content_hash IN (SELECT content_hash FROM found)"
    kept = {text: (shard, row) for text, shard, row in connection.sql(repeated).fetchall()}
    near = _nearest_selected(connection, rivals, [row for row in found if row["block"] is not None])
    return [_explanation(corpus, row, compared.get((row["shard"], row["row"]), {}), kept, near) for row in found]


def _explanation(
    corpus: Corpus,
    row: dict[str, Any],
    compared: dict[str, int],
    kept: dict[bytes, tuple[str, int]],
    near: dict[tuple[str, int], tuple[tuple[str, int], float]],
) -> Explanation:
    if row["stage"] == "ingest":
        reason = _why_dropped(corpus.settings, row)
        decisions = [Decision(stage="ingest", decision=DROPPED, reason=reason, numbers={"reason": row["reason"]})]
    else:
        numbers = {name: row[name] for name in COUNTED if row[name] is not None}
        tokens = "" if row["token_count"] is None else f", {row['token_count']:,} tokens"
        said = f"{row['n_chars']:,} characters{tokens}"
        decisions = [Decision(stage="ingest", decision=KEPT, reason=said, numbers=numbers)]
        decisions.append(_deduplicated(corpus, row, compared["copies"], kept))
        if row["quality"] is not None:
            decisions.append(_scored(corpus, row, compared))
        if row["reason"] == "bad_vector":
            reason = "bad_vector: the encoder gives its text no vector"
            decisions.append(Decision(stage="embed", decision=DROPPED, reason=reason, numbers={"reason": "bad_vector"}))
        elif row["stage"] == "select":
            decisions.append(_judged(corpus, row, compared, near.get((row["shard"], row["row"]))))
    last = decisions[-1].decision
    return Explanation(
        **{name: row[name] for name in ("shard", "row", "source_row", "id", "url")},
        outcome=last if last in {DROPPED, SELECTED, NOT_SELECTED} else UNDECIDED,
        decisions=decisions,
    )


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


def _deduplicated(corpus: Corpus, row: dict[str, Any], copies: int, kept: dict[bytes, tuple[str, int]]) -> Decision:
    """Return whether a document is a copy of one that is kept, or how many copies of it are dropped."""
    if not next(shard for shard in corpus.shards if shard.name == row["shard"]).duplicates.fingerprint:
        return Decision(stage="dedup", decision=NOT_KNOWN, reason="the run has not come so far")
    if row["stage"] != "dedup":
        said = f"{copies:,} near-duplicates of it are dropped" if copies else "no copy of another document"
        reason = said if corpus.settings.ingest.compares_shards else "copies were not looked for"
        return Decision(stage="dedup", decision=KEPT, reason=reason, numbers={"copies_dropped": copies})
    if row["reason"] == EXCLUDED:
        return Decision(stage="dedup", decision=DROPPED, reason="ingest.exclude names it", numbers={"reason": EXCLUDED})
    similarity, twin = row["similarity"], (row["twin_shard"], row["twin_row"])
    if row["reason"] == "duplicate":
        said, similarity, twin = "the same text as", 1.0, kept.get(row["content_hash"], (None, None))
    elif row["reason"] == SAME_URL:
        said = "the URL of"
    else:
        said = f"near-duplicate ({similarity:.2f} of the shingles) of"
    name, numbers = "another document", {"reason": row["reason"], "similarity": similarity}
    if any(shard.name == twin[0] for shard in corpus.shards):
        name, numbers = f"{corpus.name(*twin)}, which is kept", numbers | {"kept_shard": twin[0], "kept_row": twin[1]}
    elif twin[0] is not None:
        name = "another corpus"
    return Decision(stage="dedup", decision=DROPPED, reason=f"{said} {name}", numbers=numbers)


def _scored(corpus: Corpus, row: dict[str, Any], compared: dict[str, int]) -> Decision:
    """Return the scores of a document in words, and with the share of the corpus's documents below each."""
    shares = {name: compared[f"below_{place}"] / compared["scored"] for place, name in enumerate(corpus.scores)}
    numbers = {name: {"score": row[name], "better_than": share} for name, share in shares.items()}
    parts = [f"{name} {row[name]:.2f}, better than {share:.0%}" for name, share in shares.items()]
    return Decision(stage="score", decision=KEPT, reason="; ".join(parts), numbers=numbers)


def _judged(
    corpus: Corpus, row: dict[str, Any], compared: dict[str, int], near: tuple[tuple[str, int], float] | None
) -> Decision:
    """Return whether a document is selected, its rank, and the budget from which it would be."""
    settings, own, is_selected = corpus.settings.selection, row["inclusion"], row["selected"]
    rank, of, taken = (compared[name] for name in ("rank", "rivals", "taken"))
    share = compared["mass"] / max(compared["mass_of_all"], 1)
    numbers: dict[str, Any] = {"inclusion": own, "rank": rank, "of": of, "selected_of_them": taken}
    parts = [f"rank {rank:,} of {of:,}, {taken:,} of which fill the budget"]
    limit = settings.near_duplicates
    is_like = near is not None and limit is not None and near[1] >= limit
    if not is_selected and limit is not None and (is_like or (settings.solver == BY_GAIN and own == 0)):
        parts.append(
            f"a better document has a cosine of {limit:g} or more with it, so that it may not be selected "
            "(selection.near_duplicates)"
        )
    else:
        numbers["selected_from_ratio"] = round(share, 4)
        setting = "select_ratio" if settings.budget is None else "a budget of this share"
        parts.append(f"{'is' if is_selected else 'would be'} selected from {setting} {share:.2g}")
    if near is not None:
        (shard, place), cosine = near
        numbers |= {"nearest_selected_cosine": round(cosine, 4), "nearest_selected_shard": shard}
        numbers["nearest_selected_row"] = place
        parts.append(f"the nearest selected document has a cosine of {cosine:.2f} with it: {corpus.name(shard, place)}")
    decision = SELECTED if is_selected else NOT_SELECTED
    return Decision(stage="select", decision=decision, reason="; ".join(parts), numbers=numbers)


def _nearest_selected(
    connection: duckdb.DuckDBPyConnection, corpus: Corpus, asked: Sequence[dict[str, Any]]
) -> dict[tuple[str, int], tuple[tuple[str, int], float]]:
    """Return the other selected document of the same block that is most like each, and the cosine."""
    shards = {shard.name: shard for shard in corpus.shards}
    files = [corpus.workspace.resolve(shards[row["shard"]].embeddings) for row in asked]
    own = [take_rows(file, np.array([row["row"]]), ["embedding"]) for file, row in zip(files, asked, strict=True)]
    vectors = [unit_rows(vectors_of(one)) for one in own]  # (1, d) each
    chosen = "SELECT row, block FROM related WHERE selected AND shard = $shard ORDER BY row"
    found: dict[tuple[str, int], tuple[tuple[str, int], float]] = {}
    for name, shard in shards.items():
        listed = connection.sql(chosen, params={"shard": name}).fetchnumpy() if asked else {"row": []}
        if not len(listed["row"]):
            continue
        rows = np.asarray(listed["row"], dtype=np.int64)
        for places, batch in read_vectors(corpus.workspace, shard, rows):
            raise_if_stopped()
            cosines = unit_rows(batch) @ np.concatenate(vectors).T  # (b, k)
            for column, row in enumerate(asked):
                place = (row["shard"], row["row"])
                is_other = (rows[places] != row["row"]) | (name != row["shard"])
                among = np.where(is_other & (listed["block"][places] == row["block"]), cosines[:, column], -np.inf)
                if (best := float(among.max())) > found.get(place, (None, -np.inf))[1]:
                    found[place] = (name, int(rows[places][among.argmax()])), best
    return found
