"""`fineweb-mask why`: what is refused before any work, and how an answer is told."""

import json

from fineweb_mask.flows.ledger.answers import WhySummary
from fineweb_mask.tasks.ledger.decisions import Decision, Explanation


def test_a_folder_that_is_no_workspace_is_refused_and_nothing_is_written(invoke, tmp_path):
    done = invoke("why", tmp_path, "https://example.org")
    assert done.exit_code == 2
    assert "is no workspace: no run was started there" in done.stderr
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())
    as_json = invoke("why", tmp_path, "https://example.org", "--json")
    assert json.loads(as_json.stdout)["status"] == "failed"


def test_no_document_is_wrong_usage(invoke, tmp_path):
    done = invoke("why", tmp_path)
    assert done.exit_code == 2
    assert "Missing argument" in done.stderr


def test_an_answer_is_a_paragraph_for_each_document_and_a_line_for_each_unknown():
    steps = [
        Decision(stage="ingest", decision="kept", reason="12 characters"),
        Decision(stage="dedup", decision="dropped", reason="a copy"),
    ]
    one = Explanation(
        asked="u", shard="a", row=1234, source_row=2000, id="i", url="u", outcome="dropped", decisions=steps
    )
    gone = Explanation(asked="i2", shard="a", source_row=3, id="i2", outcome="dropped", decisions=[])
    found = WhySummary(status="unknown", workspace="w", documents=[one, gone], unknown=["x"], notes=["a note"])
    assert str(found).splitlines() == [
        "u: dropped  a row 1,234, row 2,000 of its file",
        "  ingest  kept: 12 characters",
        "  dedup   dropped: a copy",
        "i2: dropped  a, row 3 of its file",
        "x: not found",
        "a note",
    ]
    assert found._repr_html_().startswith("<pre>u: dropped")
