"""The sample recipe on real web pages: one file, half the ids and most other columns null."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest


@pytest.mark.long
def test_real_pages_go_through_to_the_row(run_sample, real_data, tmp_path):
    workspace, raw = tmp_path / "workspace", pq.read_table(real_data / "web_mix.parquet").slice(0, 3_000)
    pq.write_table(raw, tmp_path / "pages.parquet")
    summary = run_sample(workspace, f"source.path={tmp_path / 'pages.parquet'}")
    assert summary.documents_in == raw.num_rows
    assert summary.documents_in == summary.documents_kept + sum(summary.dropped.values()) + summary.not_selected

    blocks = json.loads((workspace / "dataset" / "provenance.json").read_text())["details"]["blocks"]
    dataset = [pq.ParquetFile(path).read() for path in sorted((workspace / "dataset" / "data").rglob("*.parquet"))]
    kept = Counter(name for table in dataset for name in table["block"].to_pylist())
    assert kept == {block["name"]: round(0.25 * block["documents"]) for block in blocks}

    texts = dict(zip(raw["row_key"].to_pylist(), raw["text"].to_pylist(), strict=True))
    ids = dict(zip(raw["row_key"].to_pylist(), raw["id"].to_pylist(), strict=True))
    seen = set()
    for table in dataset:
        for row in table.select(["row_key", "text", "id"]).to_pylist():
            assert row["text"] == texts[row["row_key"]]
            assert row["id"] == (ids[row["row_key"]] or row["id"])
            assert row["id"] not in seen or ids[row["row_key"]] is not None
            seen.add(row["id"])
