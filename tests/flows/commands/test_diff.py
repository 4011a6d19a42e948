"""`fineweb-mask diff`: what is refused before any work, and what is told."""

import pytest

from fineweb_mask.flows.commands import diff as module
from fineweb_mask.flows.ledger.diff import DiffSummary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name a workspace, a dataset or WORKSPACE@RUN"),
        (["--tolerance", "1.5"], "--tolerance must be a share from 0 to 1, received 1.5"),
        (["--output", "s3://bucket/page"], "must be a folder of this machine"),
    ],
)
def test_wrong_options_end_with_2_before_any_work(invoke, tmp_path, options, message):
    done = invoke("diff", tmp_path / "a", tmp_path / "b", "--output", tmp_path / "page", *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_files_is_not_replaced(invoke, tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "mine.txt").write_text("mine")
    done = invoke("diff", "a", "b", "--output", tmp_path / "page")
    assert done.exit_code == 2
    assert "holds something else than the command writes" in done.stderr


def summary(**changes):
    fields = {
        "a": {"name": "a", "selected": 1000, "tokens": 1},
        "b": {"name": "b", "selected": 900, "tokens": 1},
        "by": "dump",
        "changed": 0.25,
        "tolerance": 0.1,
        "is_above": True,
        "entered_by": [{"stage": "select", "reason": "not selected", "documents": 1234}],
        "left_by": [{"stage": "dedup", "reason": "[red]", "documents": 5}],
        "groups": [{"group": "", "a": 1, "b": 2, "entered": 3, "left": 4}],
        "scores": [{"score": "quality", "documents": 7, "a": 0.5, "b": 0.75, "rank_correlation": None}],
        "page": "diff/index.html",
    }
    return DiffSummary.model_construct(**fields | changes)


def test_what_is_told(capsys):
    module._tell(summary())
    said = capsys.readouterr().out
    assert "entered: select, not selected" in said
    assert "1,234" in said
    assert "left: dedup, [red]" in said
    assert "(empty)" in said
    assert "quality: 0.500 to 0.750 over 7 documents\n" in said
    assert "1,000 to 900 selected; 25.0% of those that either selects are not in both, more than 10.0%" in said
    assert said.endswith("page     diff/index.html\n")


def test_two_equal_sides_have_no_table_of_changes(capsys):
    module._tell(summary(entered_by=[], left_by=[], groups=[], changed=0.0, is_above=False, tolerance=None))
    said = capsys.readouterr().out
    assert "change" not in said.partition("selected,")[0]
    assert "0.0% of those that either selects are not in both\n" in said
