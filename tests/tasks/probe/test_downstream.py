"""The answers of trained models to downstream tasks, and their place on the page."""

import json
from typing import Any

import numpy as np
import pytest

from fineweb_mask.flows.probe.arms import parse_arms
from fineweb_mask.models.probe.settings import ProbeSettings
from fineweb_mask.tasks.probe.losses import VariantFiles
from fineweb_mask.tasks.probe.page import ProbeJob, write_probe_page
from fineweb_mask.tasks.probe.training import AnswerJob, answer_tasks, read_answers, train_model
from tests.models.probe.questions import QUESTIONS, write_task

TASK = "small_questions"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of lm-eval and what it loads
def test_gold_answers_are_compared_as_held_out_documents_are(
    probed: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = write_task(tmp_path / "tasks")
    arms = {}
    for arm, jobs in probed.train.items():
        models, answers = [], []
        for job in jobs:
            keeping = job.model_copy(update={"keeps_model": True, "preset_name": "kept"})
            models.append(train_model(keeping))
            asking = AnswerJob(
                root=job.root,
                arm=arm,
                seed=job.seed,
                preset_name="kept",
                context=64,
                tasks=[TASK],
                tasks_folder=str(folder),
                model=models[-1],
            )
            answers.append(answer_tasks(asking))
            assert answer_tasks(asking).cached
            known = asking.key
            (folder / "more.txt").write_text("other questions")
            assert asking.model_copy().key != known
            (folder / "more.txt").unlink()
            assert read_answers(asking.manifest_path)["task"].to_pylist() == [TASK] * len(QUESTIONS)
        groups = [job.current() for job in probed.variants[arm]]
        arms[arm] = VariantFiles(tokens=probed.tokens[arm], groups=groups, models=models, answers=answers)
    page = ProbeJob(
        root=probed.hold_out.root,
        settings=ProbeSettings(arms=parse_arms("best=mean_field,random"), seeds=2, heldout={"theirs": "x"}),
        selection=probed.built.recipe.selection,
        n_tokens=640,
        is_verdict=True,
        arms=arms,
        excluded=probed.excluded,
        held_out=probed.held_out,
    )
    write_probe_page(page)
    metrics = json.loads((page.folder / "metrics.json").read_text())
    assert metrics["held_out"][f"task {TASK}"]["documents"] == len(QUESTIONS)
    for arm, files in arms.items():
        tables = [read_answers(page.workspace.resolve(file)) for file in files.answers]
        expected = [np.sum(one["bits"].to_numpy()) / np.sum(one["bytes"].to_numpy()) for one in tables]
        assert metrics["bits_per_byte"][f"task {TASK}"][arm]["seeds"] == pytest.approx(expected)
        assert metrics["arms"][arm]["accuracy"][f"task {TASK}"] == pytest.approx(
            np.mean([one["correct"].to_numpy().mean() for one in tables])
        )
    assert f"Task {TASK}" in (page.folder / "index.html").read_text()
