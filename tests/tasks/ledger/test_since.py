"""What changed since the selection before: settings, figures, documents; and that the page stays the same without."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.tasks import report


def page(built: Any) -> str:
    return str((built.workspace.reports / "index.html").read_text(encoding="utf-8"))


def changed_job(built: Any) -> Any:
    """Return the job of a report on another selection, by another setting: of one shard, one document is exchanged."""
    job = built.report_job
    first, *others = job.shards
    masks = built.read(first.masks)
    selected = masks["selected"].to_numpy().copy()
    eligible = masks["block"].is_valid().to_numpy()
    gone, new = (int(np.flatnonzero(eligible & (selected == is_kept))[0]) for is_kept in (True, False))
    selected[[gone, new]] = selected[[new, gone]]
    place = masks.column_names.index("selected")
    field = masks.schema.field("selected")
    path = first.masks.path.replace(".parquet", "-other.parquet")
    pq.write_table(masks.set_column(place, field, pa.array(selected)), built.workspace.root / path)
    shard = first.model_copy(update={"masks": first.masks.model_copy(update={"path": path, "fingerprint": "other"})})
    recipe = job.dataset.details["recipe"]
    recipe = recipe | {"selection": recipe["selection"] | {"lamb": 0.25}}
    details = job.dataset.details | {"recipe": recipe}
    dataset = job.dataset.model_copy(update={"fingerprint": "other", "details": details})
    return job.model_copy(update={"shards": [shard, *others], "dataset": dataset})


def test_the_first_report_has_nothing_to_compare_with(copied: Any) -> None:
    assert copied.report.path
    assert "What changed" not in page(copied)


def test_settings_and_documents_that_came_and_went_are_told(copied: Any) -> None:
    assert copied.report.path
    job = changed_job(copied)
    report.report(job)
    text = page(copied)
    section = text[text.index('<section id="what-changed') :].split("</section>")[0]
    lamb = copied.recipe.selection.lamb
    assert f"Settings: selection.lamb {lamb} → 0.25." in section
    assert "1 documents entered, 1 left" in section
    assert section.count('<article class="card">') == 2
    assert section.index("<h3>Entered") < section.index("<h3>Left")
    selected = copied.counts.selected
    assert f"{2 / (selected + 1):.1%} of the documents that either selects are not in both: selection.lamb" in text
    before, now = json.loads((copied.workspace.reports / "metrics.json").read_text())["selection"]["before"], selected
    assert before["figures"]["documents selected"] == now
    report.report(job.model_copy(update={"force": True}))
    assert page(copied) == text  # written again, it is compared with the same selection


def test_masks_that_are_removed_are_not_compared_and_it_says_so(copied: Any) -> None:
    assert copied.report.path
    job = changed_job(copied)
    copied.workspace.resolve(copied.report_job.shards[0].masks).unlink()
    report.report(job)
    number = len(job.shards)
    assert f"Documents can be compared in {number - 1} of {number} files" in page(copied)
    assert "0 documents entered, 0 left" in page(copied)
