"""`fineweb-mask why`: how an answer is told."""

from fineweb_mask.flows.ledger import WhySummary
from fineweb_mask.tasks.ledger.decisions import Decision, Explanation


def test_an_answer_is_a_paragraph_for_each_document_and_a_line_for_each_unknown():
    steps = [
        Decision("ingest", "kept", "12 characters"),
        Decision("dedup", "dropped", "a copy"),
    ]
    known = {"shard": "a", "outcome": "dropped"}
    one = Explanation(row=1234, source_row=2000, id="i", url="u", decisions=steps, **known)
    gone = Explanation(source_row=3, id="i2", decisions=[], **known)
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
