"""Find what documents of a corpus pay for near-duplicates in other shards, cell by cell.

A pass writes the documents that may be selected, the candidates, by cell (models/selection/corpus/near_duplicates.py).
One job for each cell compares those of all shards. What they pay changes the threshold: it is found by one more pass,
over the candidates alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import CHARGES
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.selection.corpus.learning import (
    CorpusJob,
    MeasureJob,
    RulePart,
    cell_prefix,
    read_learned,
)
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.arrays import read_arrays, write_arrays
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection.corpus.documents import Arrays


class ChargesJob(CorpusJob):
    """Compare the candidates of one cell, of all shards; `charges_jobs` makes those of all cells."""

    stage: ClassVar[Stage] = Stage(
        "charges", version=2, label="select", folders=("charges",), interim=True, run_with=("select",)
    )
    cell: int
    passes: list[StageFile]  # the outputs of `MeasureJob`, in the order of the shards
    rule: StageFile  # that they passed with
    part: RulePart

    @property
    def name(self) -> str:
        """The cell's number."""
        return f"cell-{self.cell}"

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu"

    def depends_on(self) -> Dependencies:
        """Return the cell, what a pair costs, and the candidates."""
        settings = [self.cell, self.settings.near_duplicates.model_dump()]
        return Dependencies(settings=settings, inputs=[file.fingerprint for file in self.passes])


@stage_task
def find_charges(job: ChargesJob) -> None:
    """Write what candidates pay for near-duplicates, by shard and row, those that pay nothing left out."""
    import torch

    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.corpus.documents import Documents, without_prefix
    from fineweb_mask.models.selection.corpus.near_duplicates import near_duplicate_charges

    device = torch.device(choose_device(job.settings.device))
    learned = read_learned(job.workspace, job.rule, job.part, device)
    assert learned.search is not None  # noqa: S101 - near-duplicates are charged for
    parts, rows, shards, prefix = [], [], [], cell_prefix(job.cell)
    for file in track("shards", job.passes):
        arrays = without_prefix(prefix, read_arrays(job.workspace.root / file.path, prefix))
        if arrays:
            parts.append(Documents.of_arrays(arrays))
            rows.append(arrays["rows"])
            shards += [file.name] * len(arrays["rows"])
    with stage_file_writer(job.output, CHARGES, job.key) as writer:
        if parts:
            documents, levels = Documents.concatenate(parts), learned.search.levels
            with gpu_slot(str(device)):
                charges = near_duplicate_charges(learned.rule, levels, job.settings.near_duplicates, documents, device)
            table = pa.table([shards, np.concatenate(rows), charges], schema=CHARGES).filter(charges > 0)
            for batch in table.to_batches():
                writer.write(batch)


def charges_jobs(root: str, settings: PipelineSelectionSettings, passes: Sequence[MeasureJob]) -> list[ChargesJob]:
    """Return the jobs of all cells, whether or not the outputs of the pass are there."""
    [rule] = {job.rule.fingerprint: job.rule for job in passes}.values()
    files = [job.reference() for job in passes]
    return [
        ChargesJob(root=root, settings=settings, cell=cell, passes=files, rule=rule, part=passes[0].part)
        for cell in range(rule.details["cells" if passes[0].part == "next" else "best_cells"])
    ]


class ChargedJob(CorpusJob):
    """Measure what a rule selects from one shard's candidates, less what they pay."""

    stage: ClassVar[Stage] = Stage(
        "measure_charged", version=1, label="select", folders=("passes",), interim=True, run_with=("select",)
    )
    measured: StageFile  # the output of the shard's `MeasureJob`
    charges: list[StageFile]  # of all cells
    rule: StageFile

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.measured.name

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu"

    def depends_on(self) -> Dependencies:
        """Return the rule, the candidates and what they pay."""
        charges = [file.fingerprint for file in self.charges]
        return Dependencies(settings=None, inputs=[self.rule.fingerprint, self.measured.fingerprint, charges])


@stage_task
def measure_charged(job: ChargedJob) -> None:
    """Write sums over a shard's candidates, and those near the threshold."""
    import torch

    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.corpus.documents import Documents, prefixed, without_prefix
    from fineweb_mask.models.selection.corpus.passes import Tally, tally_arrays

    device = torch.device(choose_device(job.settings.device))
    learned = read_learned(job.workspace, job.rule, "next", device)
    assert learned.search is not None  # noqa: S101 - near-duplicates are charged for
    arrays = read_arrays(job.workspace.resolve(job.measured))
    parts, rows = [], []
    for cell in range(len(learned.search.centres)):
        if found := without_prefix(cell_prefix(cell), arrays):
            parts.append(Documents.of_arrays(found))
            rows.append(found["rows"])
    tally: Arrays = {}
    if parts:
        order = np.argsort(np.concatenate(rows))
        paid = read_charges(job.workspace, job.charges, job.name, int(np.concatenate(rows).max()) + 1)
        documents = Documents.concatenate(parts).take(order)
        documents = documents._replace(charges=paid[np.concatenate(rows)[order]])
        with gpu_slot(str(device)):
            measured = learned.rule.measure(documents, device)
            tally = tally_arrays([Tally.by_group(learned.search.margins, documents, measured)])
    write_arrays(job.output, job.key, prefixed("tally", tally), {})


def read_charges(workspace: Workspace, files: Sequence[StageFile], shard: str, rows: int) -> NDArray[np.float32]:
    """Return what the rows of a shard pay, (rows,): most pay nothing."""
    charges = np.zeros(rows, dtype=np.float32)
    for file in files:
        table = read_table(workspace.resolve(file), columns=["row", "charge"], filters=[("shard", "==", shard)])
        charges[table["row"].to_numpy()] = table["charge"].to_numpy()
    return charges
