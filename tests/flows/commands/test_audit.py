"""`fineweb-mask audit`: what is refused before any work, and what is told."""

import pytest

from fineweb_mask.flows.audit import AuditSummary
from fineweb_mask.flows.commands.audit import _tell
from fineweb_mask.flows.recipe import load_recipe


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--documents", 999], "--documents must be at least 1,000, fewer tell nothing: received 999"),
        (["--by", "nosuch"], "--by nosuch: no document will have this column: name one of "),
        (["--by", "text"], "--by text: "),
        (["--set", "source.path=nosuch"], "source.path: "),
        (["--set", "ingest.decontaminate=[nosuch.parquet]"], "ingest.decontaminate: "),
    ],
)
def test_wrong_options_end_with_2_before_any_work(invoke, recipe, tmp_path, options, message):
    done = invoke("audit", recipe, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [recipe]


def test_what_is_told(capsys):
    step = {
        "step": "near",
        "came": 200,
        "dropped": 50,
        "alike": [0.71, 0.64, 0.77, 200],
        "planted": {"edited 5%": [0.99, 0.9, 1.0, 200], "template": None, "copy": [1.0, 0.9, 1.0, 100]},
        "groups": [{"group": "[b]hansard", "came": 100, "kept": 0.02, "reason": "near"}],
    }
    found = AuditSummary.model_construct(steps=[step], warnings=["w"], advice=["a"], page="p")
    _tell(load_recipe("sample"), found)
    said = " ".join(capsys.readouterr().out.split())
    assert "near 25.00% 71% [64, 77] edited 5% 99% [b]hansard 2% !" in said
    assert said.endswith("warning w advice a page p")
