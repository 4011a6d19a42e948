"""Pass over the documents of a shard with a threshold policy: what a pass measures is gathered by `LearnJob`.

A pass also writes the documents that may be selected, the candidates, by cell
(models/selection/corpus/near_duplicates.py). One job for each cell compares those of all shards, and writes the
penalties of near-duplicates. These change the threshold: it is found by one more pass, over the candidates alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.schemas import CHARGES
from fineweb_mask.models.selection.corpus.documents import Documents, Tree, flat, made, nested
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.selection.blocks import inputs_of
from fineweb_mask.tasks.selection.corpus.learning import CorpusJob, PolicyPart, read_learned
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_parts
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, StageKey
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays, stage_file_writer, write_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    import torch

    from fineweb_mask.models.selection.corpus.sample import Learned


class MeasureJob(CorpusJob):
    """Measure what a policy selects from one shard: from all its documents, or from its candidates less penalties."""

    stage: ClassVar[Stage] = Stage("measure", version=6, label="select", folders=("passes",), interim=True)
    shard: ShardFiles
    policy: StageFile  # the output of a `LearnJob`, or the policy that is kept
    part: PolicyPart = "next"
    measured_with: str = ""  # fingerprint of the `LearnJob`'s output that a kept policy comes from
    measured: StageFile | None = None  # the output of the pass over all documents, whose candidates are measured again
    penalties: tuple[StageFile, ...] = ()  # of these candidates, for all cells

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name

    def depends_on(self) -> Dependencies:
        """Return the policy, and what is measured: the shard and the seed, or the candidates and their penalties."""
        if self.measured is not None:
            penalties = [file.fingerprint for file in self.penalties]
            return Dependencies(settings=None, inputs=[self.policy.fingerprint, self.measured.fingerprint, penalties])
        policy = self.measured_with or self.policy.fingerprint
        return Dependencies(settings=self.read_with, inputs=[policy, *inputs_of(self.shard)])

    @property
    def key(self) -> StageKey:
        """What the output is known by, under another name where only candidates are measured."""
        key = super().key
        return key if self.measured is None else key.model_copy(update={"stage": "measure_charged", "version": 1})


@stage_task
@same_threads()
def measure(job: MeasureJob) -> None:
    """Write sums over a shard's documents, or over its candidates, and those near the threshold."""
    device = torch_device(job.settings.device)
    learned = read_learned(job.workspace, job.policy, job.part, device)
    if job.measured is None:
        tree = _of_documents(job, learned, device)
    else:
        tree = _of_candidates(job, job.measured, learned, device)
    write_arrays(job.output, job.key, flat(tree), {})


def _of_documents(job: MeasureJob, learned: "Learned", device: "torch.device") -> Tree:
    """Return the documents' marginal gains and the tally; if near-duplicates have penalties, the candidates by cell."""
    from fineweb_mask.models.selection.corpus.passes import Tally

    columns = read_columns(job.workspace, job.shard)
    gains = np.full(job.shard.rows, np.nan, dtype=np.float32)
    tallies, candidates, rows, cells = [], [], [], []
    for own, part in read_parts(job.workspace, job.shard, columns, job.settings):
        with gpu_slot(device):
            measured = learned.rule.measure(part, device)
            gains[own] = measured.worth
            tallies.append(Tally.of(learned.margin, part, measured))
            if learned.search is not None:
                part = part._replace(worth=measured.worth)  # noqa: PLW2901
                found, in_cells = learned.search.candidates(part, device)
                candidates.append(part.take(found))
                rows.append(own[found])
                cells.append(in_cells)
    tree: dict[str, Any] = {"worth": {"": gains}, "tally": Tally.total(tallies) if tallies else {}}
    if candidates:
        documents, places, of_cell = Documents.concatenate(candidates), np.concatenate(rows), np.concatenate(cells)
        for cell in np.unique(of_cell).tolist():
            inside = (of_cell == cell).nonzero()[0]
            tree[_prefix(cell)] = {"documents": documents.take(inside), "rows": places[inside]}
    return tree


def _of_candidates(job: MeasureJob, measured: StageFile, learned: "Learned", device: "torch.device") -> Tree:
    """Return the tally of the candidates that an earlier pass wrote, less their penalties."""
    from fineweb_mask.models.selection.corpus.passes import Tally

    assert learned.search is not None  # noqa: S101 - near-duplicates have penalties
    tree = nested(read_arrays(job.workspace.resolve(measured)))
    cells = [tree[name] for name in map(_prefix, range(len(learned.search.centres))) if name in tree]
    if not cells:
        return {}
    rows = np.concatenate([cell["rows"] for cell in cells])
    order = np.argsort(rows)
    penalties = read_penalties(job.workspace, job.penalties, job.name, int(rows.max()) + 1)
    documents = Documents.concatenate([made(Documents, cell["documents"]) for cell in cells]).take(order)
    documents = documents._replace(charges=penalties[rows[order]])
    with gpu_slot(device):
        found = learned.rule.measure(documents, device)
        return {"tally": Tally.of(learned.search.margin, documents, found)}


def _prefix(cell: int) -> str:
    """Return what the names of a cell's arrays begin with."""
    return f"cell-{cell}"


class PenaltiesJob(CorpusJob):
    """Compare the candidates of one cell, of all shards; `penalties_jobs` makes those of all cells."""

    stage: ClassVar[Stage] = Stage("charges", version=2, label="select", folders=("charges",), interim=True)
    cell: int
    passes: list[StageFile]  # the outputs of `MeasureJob`, in the order of the shards
    policy: StageFile  # that they passed with
    part: PolicyPart

    @property
    def name(self) -> str:
        """The cell's number."""
        return _prefix(self.cell)

    def depends_on(self) -> Dependencies:
        """Return the cell, what a pair costs, and the candidates."""
        settings = [self.cell, self.settings.near_duplicates.model_dump()]
        return Dependencies(settings=settings, inputs=[file.fingerprint for file in self.passes])


@stage_task
@same_threads()
def find_penalties(job: PenaltiesJob) -> None:
    """Write the penalties of candidates for near-duplicates, by shard and row, those without one left out."""
    from fineweb_mask.models.selection.corpus.near_duplicates import near_duplicate_penalties

    device = torch_device(job.settings.device)
    learned = read_learned(job.workspace, job.policy, job.part, device)
    parts, rows, shards, prefix = [], [], [], _prefix(job.cell)
    for file in track("shards", job.passes):
        if tree := nested(read_arrays(job.workspace.root / file.path, prefix)):
            parts.append(made(Documents, tree[prefix]["documents"]))
            rows.append(tree[prefix]["rows"])
            shards += [file.name] * len(rows[-1])
    with stage_file_writer(job.output, CHARGES, job.key) as writer:
        if parts:
            documents = Documents.concatenate(parts)
            with gpu_slot(device):
                charges = near_duplicate_penalties(learned.rule, job.settings.near_duplicates, documents, device)
            table = pa.table([shards, np.concatenate(rows), charges], schema=CHARGES).filter(charges > 0)
            for batch in table.to_batches():
                writer.write(batch)


def penalties_jobs(root: str, settings: PipelineSelectionSettings, passes: Sequence[MeasureJob]) -> list[PenaltiesJob]:
    """Return the jobs of all cells, whether or not the outputs of the pass are there."""
    [policy] = {job.policy.fingerprint: job.policy for job in passes}.values()
    files = [job.reference() for job in passes]
    return [
        PenaltiesJob(root=root, settings=settings, cell=cell, passes=files, policy=policy, part=passes[0].part)
        for cell in range(policy.details["cells" if passes[0].part == "next" else "best_cells"])
    ]


def read_penalties(workspace: Workspace, files: Sequence[StageFile], shard: str, rows: int) -> NDArray[np.float32]:
    """Return the penalties of the rows of a shard, (rows,): most are 0."""
    penalties = np.zeros(rows, dtype=np.float32)
    for file in files:
        table = read_table(workspace.resolve(file), columns=["row", "charge"], filters=[("shard", "==", shard)])
        penalties[table["row"].to_numpy()] = table["charge"].to_numpy()
    return penalties
