"""The page of the probe: its numbers against plain references."""

import json
import re
from typing import Any

import numpy as np
import pytest

from fineweb_mask.flows.probe.arms import parse_arms
from fineweb_mask.models.probe.settings import GROUPS, POOL, ProbeSettings
from fineweb_mask.tasks.probe.held_out import HeldOut
from fineweb_mask.tasks.probe.losses import VariantFiles
from fineweb_mask.tasks.probe.page import (
    NOT_A_VERDICT,
    OWN_DISTRIBUTION,
    ProbeJob,
    _finding,
    _page,
    write_probe_page,
)
from fineweb_mask.tasks.probe.training import read_bits


def page_job(probed: Any, **changes: Any) -> ProbeJob:
    settings = {"arms": parse_arms("best=mean_field,random"), "seeds": 2, "by": "topic", "heldout": {"theirs": "x"}}
    return ProbeJob(
        root=probed.hold_out.root,
        settings=ProbeSettings(**(settings | changes)),
        selection=probed.built.recipe.selection,
        n_tokens=640,
        is_verdict=False,
        arms={
            arm: VariantFiles(
                tokens=probed.tokens[arm],
                groups=[job.current() for job in probed.variants[arm]],
                models=[job.current() for job in probed.train[arm]],
                answers=[],
            )
            for arm in ("best", "random")
        },
        excluded=probed.excluded,
        held_out=probed.held_out,
    )


@pytest.fixture(scope="module")
def written(probed: Any) -> Any:
    job = page_job(probed)
    write_probe_page(job)
    return job, json.loads((job.folder / "metrics.json").read_text())


def test_bits_per_byte_are_those_of_the_trainings(probed: Any, written: Any) -> None:
    _, metrics = written
    documents = HeldOut.read(probed.built.workspace, probed.held_out).documents
    sets = np.array(documents["set"].to_pylist())
    for name in (POOL, "theirs"):
        for arm in ("best", "random"):
            expected = []
            for job in probed.train[arm]:
                bits, sizes = read_bits(job.manifest_path)
                expected.append(bits[sets == name].sum() / sizes[sets == name].sum())
            assert metrics["bits_per_byte"][name][arm]["seeds"] == pytest.approx(expected)
        [one] = metrics["comparisons"][name]
        means = {arm: metrics["bits_per_byte"][name][arm]["mean"] for arm in ("best", "random")}
        assert one["difference"] == pytest.approx(means["best"] - means["random"])
        assert one["low"] < one["difference"] < one["high"]
    assert metrics["held_out"].keys() == {POOL, "theirs"}


def test_groups_count_the_documents_drawn_for_them(probed: Any, written: Any) -> None:
    _, metrics = written
    documents = HeldOut.read(probed.built.workspace, probed.held_out).documents.to_pylist()
    for group, found in metrics["groups"].items():
        assert found["documents"] == sum(row["group"] == group for row in documents if row["set"] in (POOL, GROUPS))
    assert metrics["groups"].keys() == {"sea", "kitchen", "space"}


def test_the_page_says_what_it_cannot_say(written: Any) -> None:
    job, metrics = written
    page = (job.folder / "index.html").read_text()
    assert OWN_DISTRIBUTION in page
    assert page.index("What was found") < page.index(NOT_A_VERDICT) < page.index("Held-out set theirs</h2>")
    assert metrics["left_out"]["held_out"] > 0
    assert page.index("Held-out set theirs") < page.index("Documents of the corpus")
    verdict = metrics["comparisons"][POOL][0]["verdict"]
    assert verdict in {"better", "worse", "no difference seen"}
    assert page.count(">smallest visible<") == 2  # in the tables of both sets
    assert page.count("The smallest visible difference") == 1
    assert {path.stem for path in (job.folder / "plots").iterdir()} == {"set-pool", "set-theirs", "groups", "training"}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("worse", "On theirs, best is better than random by 0.125 bits per byte."),
        ("no difference seen", "On theirs, no difference from random was seen; one of less than 0.070 bits per byte"),
    ],
)
def test_each_set_has_its_finding_in_a_sentence(written: Any, verdict: str, expected: str) -> None:
    _, metrics = written
    one = {"arm": "random", "other": "best", "difference": 0.125, "low": 0.1, "high": 0.15, "visible": 0.07}
    told = metrics | {"baseline": "random", "comparisons": {"theirs": [one | {"verdict": verdict, "adjusted": 0.01}]}}
    assert _finding(told, "theirs").startswith(expected)


def test_hostile_names_of_groups_are_text_on_the_page(probed: Any, written: Any) -> None:
    job, metrics = written
    attack = "<img src=x onerror=alert(1)> | `a` </script><script>alert(1)</script> [l](javascript:alert(1))"
    page = _page(job, json.loads(json.dumps(metrics).replace('"sea"', json.dumps(attack))))
    text = page.html()
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert "[l](" not in re.sub(r"(?<!\\)`[^`]*`", "", page.markdown())  # without code, which is not obeyed


def test_no_verdict_comes_from_one_seed(probed: Any, written: Any) -> None:
    job = page_job(probed, seeds=1, by=None)
    arms = {name: arm._replace(models=arm.models[:1]) for name, arm in job.arms.items()}
    write_probe_page(job.model_copy(update={"arms": arms}))
    metrics = json.loads((job.folder / "metrics.json").read_text())
    assert {one["verdict"] for found in metrics["comparisons"].values() for one in found} == {
        "no verdict from one seed"
    }
    assert metrics["groups"] == {}
    assert f"On {POOL}: no verdict from one seed." in (job.folder / "index.html").read_text()
    assert "seed: no verdict" in (job.folder / "index.html").read_text()
