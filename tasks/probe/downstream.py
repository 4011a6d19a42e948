"""Ask each trained model the questions of the downstream tasks."""

import shutil
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from fineweb_mask.tasks.probe.training import ModelJob
from fineweb_mask.tasks.storage.atomic import atomic_write, tree_files
from fineweb_mask.tasks.storage.parquet import read_table, write_table
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, file_digest


class AnswerJob(ModelJob):
    """Ask the model of one arm and one seed."""

    stage: ClassVar[Stage] = Stage("answer", version=1, folders=("probe/answers",))
    context: int
    tasks: list[str]
    tasks_folder: str | None
    model: StageFile  # of the training, which kept it

    def depends_on(self) -> Dependencies:
        """Return the questions, and the model."""
        own = [] if self.tasks_folder is None else tree_files(Path(self.tasks_folder))
        inputs = [self.model.fingerprint, [file_digest(file) for file in own]]
        return Dependencies(settings=[self.tasks, self.context], inputs=inputs)


@stage_task
def answer_tasks(job: AnswerJob) -> None:
    """Write the bits of every gold answer; `details` hold each task's accuracy."""
    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.probe.downstream import answer
    from fineweb_mask.tasks.inference.gpu import gpu_slot

    device = choose_device("auto")
    folder = None if job.tasks_folder is None else Path(job.tasks_folder)
    model = job.workspace.resolve(job.model).parent / "model"
    with gpu_slot(device):
        answers = answer(model, job.tasks, folder=folder, context=job.context, device=device)
    shutil.rmtree(job.folder, ignore_errors=True)
    path = job.folder / "answers.parquet"
    table = pa.table({"task": answers.tasks, "bits": answers.bits, "bytes": answers.sizes, "correct": answers.correct})
    with atomic_write(path) as partial:
        write_table(table, partial)
    accuracy = {
        task: float(answers.correct[[one == task for one in answers.tasks]].mean())
        for task in dict.fromkeys(answers.tasks)
    }
    write_manifest(job.manifest_path, job.key, [path], {"accuracy": accuracy})


def read_answers(manifest: Path) -> pa.Table:
    """Return the task, bits and bytes of every gold answer."""
    return read_table(manifest.parent / "answers.parquet")
