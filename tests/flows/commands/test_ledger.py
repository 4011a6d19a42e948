"""`fineweb-mask diff`: what is told."""

from fineweb_mask.flows.commands.ledger import print_difference
from fineweb_mask.tasks.ledger.difference import DiffSummary


def test_what_is_told(capsys):
    fields = {
        "a": {"name": "a", "selected": 1000, "tokens": 1},
        "b": {"name": "b", "selected": 900, "tokens": 1},
        "by": "dump",
        "changed": 0.25,
        "tolerance": 0.1,
        "is_above": True,
        "entered_by": [{"stage": "select", "reason": "not selected", "documents": 1234, "examples": ["u1"]}],
        "left_by": [{"stage": "dedup", "reason": "[red]", "documents": 5, "examples": ["[b]u2"]}],
        "groups": [{"group": "", "a": 1, "b": 2, "entered": 3, "left": 4}],
        "scores": [{"score": "quality", "documents": 7, "a": 0.5, "b": 0.75, "correlation": None}],
    }
    print_difference(DiffSummary.model_construct(**fields))
    said = capsys.readouterr().out
    for part in ("entered: select, not selected", "1,234", "left: dedup, [red]", "[b]u2", "(empty)"):
        assert part in said
    assert "quality: 0.500 to 0.750 over 7 documents\n" in said
    assert "1,000 to 900 selected; 25.0% of those that either selects are not in both, more than 10.0%" in said
    equal = {"entered_by": [], "left_by": [], "groups": [], "changed": 0.0, "is_above": False, "tolerance": None}
    print_difference(DiffSummary.model_construct(**fields | equal))
    said = capsys.readouterr().out
    assert "change" not in said.partition("selected,")[0]
    assert "0.0% of those that either selects are not in both\n" in said
