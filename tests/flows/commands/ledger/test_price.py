"""`fineweb-mask price`: what is refused before any work, and what is told."""

import pytest

from fineweb_mask.flows.commands.ledger import price as module
from fineweb_mask.flows.ledger.price import PriceSummary


@pytest.mark.parametrize(
    ("options", "message"),
    [(["a.parquet"], "is no workspace: no run was started there"), ([], "Missing argument")],
)
def test_wrong_arguments_end_with_2_before_any_work(invoke, tmp_path, options, message):
    done = invoke("price", tmp_path, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_told(capsys):
    fields = {
        "documents": 10_000,
        "estimates": {
            "kept": [0.071, 0.062, 0.08],
            "near": [0.38, 0.36, 0.4],
            "new_clusters": [3.0, 2.0, 5.0],
            "gain": [0.0031, -0.001, 0.007],
            "seconds": [5_000.0, 4_000.0, 6_000.0],
        },
        "near_by": "minhash",
        "clusters": [{}] * 50,
        "is_own_rate": True,
        "remarks": ["r [b]"],
        "page": "p/index.html",
    }
    module._tell(PriceSummary.model_construct(**fields))
    said = capsys.readouterr().out
    for text in ("7.1%", "6.2% to 8.0%", "of 50 clusters", "+0.0031", "83 min", "67 min to 100 min", "note     r [b]"):
        assert text in said, said
    assert "about 710 of 10,000" in " ".join(said.split())
    assert said.endswith("page     p/index.html\n")
