"""List the duplicates of every shard, exact and near ones: the rows from which nothing is selected.

Ingest drops repeats within a shard and records each text's hash. For near-duplicates, texts are sketched shard by
shard. Then the documents of all shards are compared in one job, which writes the list of each shard. The duplicates
stay in the documents, and are left out when these are scored, embedded and selected.

Of equal texts, that of the shard whose name comes first is kept. Of near-duplicates the earliest is kept as well,
unless `ingest.copies` says otherwise: of the shard of the first name, then of the first row. The order of work does
not matter.

One file holds the lists of all shards. What comes after depends on the rows of its own shard's list alone: when a shard
is added whose name comes after the others', no selection is made again, as long as the earliest copies are kept.
"""

import tempfile
from pathlib import Path
from typing import ClassVar

import duckdb
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.dedup.choice import Dropped, choose
from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.models.schemas import DUPLICATES
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.dedup.comparison import LAST, PAIRS, ROW_BITS, Comparison
from fineweb_mask.tasks.dedup.sketch import Documents, name_of
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import Listing, find_file
from fineweb_mask.tasks.workspace.references import NEAR, REPEATED, SAME_URL, StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import ROW_GROUP_ROWS, stage_file_writer

LISTED = f"""
    CREATE VIEW listed AS
    SELECT document, document >> {ROW_BITS} AS place, document & {LAST} AS row, reason, better >> {ROW_BITS} AS twin,
           better & {LAST} AS twin_row, similarity
    FROM (SELECT *, '{REPEATED}' AS reason, NULL AS similarity FROM repeats
          UNION ALL BY NAME SELECT *, if(similarity IS NULL, '{SAME_URL}', '{NEAR}') AS reason FROM near)
    """  # noqa: S608 - words and numbers of our own

LISTS = """
    SELECT place, count(*), bit_xor(md5_number(row::VARCHAR))::VARCHAR, histogram(reason) FROM listed GROUP BY place
    """
"""What is in the list of each shard: the number of its rows, by which of them it is known, and why they are there."""


class Shard(BaseModel):
    """What is compared of a shard, or of a file of another corpus."""

    model_config = ConfigDict(frozen=True)

    documents: Documents
    signatures: StageFile | None = None  # where near-duplicates are looked for

    @property
    def is_own(self) -> bool:
        """Whether its documents are of this corpus."""
        return isinstance(self.documents, StageFile)


class DedupJob(StageJob):
    """List the duplicates of every shard of a corpus."""

    stage: ClassVar[Stage] = Stage("dedup", version=6, folders=("duplicates",), counts=("ingested", "eligible"))
    name: ClassVar[str] = "corpus"
    shards: tuple[Shard, ...]  # files of other corpora first, then by the shards' names
    settings: IngestSettings
    memory_limit: str

    def depends_on(self) -> Dependencies:
        """Return what is compared, which copy is kept, and the fingerprints of what is read, in their order."""
        ingest = self.settings
        near = ingest.near_threshold if ingest.near_dedup == "minhash" else None
        settings = [ingest.exact_dedup == "corpus", ingest.url_dedup, near]
        return Dependencies(
            settings=[*settings, *([ingest.copies.model_dump()] if ingest.finds_copies else [])],
            inputs=[[name_of(shard.documents), shard.documents, shard.signatures] for shard in self.shards],
        )

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards of this corpus."""
        return [name_of(shard.documents) for shard in self.shards if shard.is_own]

    def shard_files(self, listing: Listing | None = None) -> list[StageFile] | None:
        """Return the lists of the shards, in their order, or None if they are not there."""
        if (file := self.current(listing)) is None:
            return None
        lists = {name: _list_of(name, file.path, *counted) for name, counted in file.details["shards"].items()}
        return [lists.get(name) or no_duplicates(name) for name in self.shard_names]

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return the file of all lists, if it is there."""
        return find_file(self.workspace, self.folder_name, self.name, self.key, listing)


def _list_of(shard: str, path: str, rows: int, content: str, reasons: dict[str, int]) -> StageFile:
    """Return the reference to a shard's list; the fingerprint is of its rows: which copy is kept changes nothing."""
    fingerprint, stage = digest([shard, content]), DedupJob.stage.name
    return StageFile(stage=stage, name=shard, path=path, rows=rows, bytes=0, fingerprint=fingerprint, details=reasons)


def no_duplicates(shard: str) -> StageFile:
    """Return the reference to the duplicates of a shard that has none, for which nothing is read or written.

    Examples
    --------
    >>> no_duplicates("a").rows, no_duplicates("a").path
    (0, '')
    """
    return _list_of(shard, "", 0, "", {})


@stage_task
def dedup(job: DedupJob) -> None:
    """Write the lists of all shards that have duplicates.

    Raises
    ------
    WorkspaceError
        If the memory limit is too little for DuckDB.
    """
    ingest = job.settings
    job.workspace.cache.mkdir(parents=True, exist_ok=True)
    spill = Path(tempfile.mkdtemp(prefix=".dedup-", suffix=".partial", dir=job.workspace.cache))
    with spilling_database(spill, job.memory_limit, f"{job.kind} {job.name}") as connection:
        compared = Comparison(connection, job.workspace, [one.documents for one in job.shards], ingest.copies)
        if ingest.exact_dedup == "corpus":
            compared.find_repeats()
        pairs = [PAIRS.empty_table(), *([compared.of_one_url()] if ingest.url_dedup else [])]
        if ingest.near_dedup == "minhash":
            signatures = [shard.signatures for shard in job.shards if shard.signatures is not None]
            words = Sketch.for_threshold(ingest.near_threshold).words
            pairs.append(compared.alike(signatures, words, ingest.near_threshold))
        near = choose(*(column.to_numpy() for column in pa.concat_tables(pairs).columns))
        _write_lists(job, connection, near)


def _write_lists(job: DedupJob, connection: duckdb.DuckDBPyConnection, near: Dropped) -> None:
    """Write the duplicates in the order of the shards and rows; the details tell of each shard what is in its list."""
    similarity = pa.array(near.similarity, from_pandas=True)
    connection.register("near", pa.table([near.documents, near.kept, similarity], schema=PAIRS))
    names = pa.array([name_of(shard.documents) for shard in job.shards], pa.string())
    connection.execute(LISTED)
    in_order = connection.sql("SELECT * EXCLUDE (document) FROM listed ORDER BY document")
    with stage_file_writer(job.output, DUPLICATES, job.key) as writer:
        for batch in in_order.to_arrow_reader(ROW_GROUP_ROWS):
            place, row, reason, twin, twin_row, similarity = batch.columns
            columns = [names.take(place), row, reason, names.take(twin), twin_row, similarity]
            table = pa.table(columns, names=DUPLICATES.names).cast(DUPLICATES)
            writer.write(table.to_batches()[0])
        found = connection.sql(LISTS).fetchall()
        writer.details = {"shards": {names[place].as_py(): in_list for place, *in_list in found}}
