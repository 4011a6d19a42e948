"""From a crawl to tokens for a trainer in one run: the recipe `raw-web`, with models of this machine."""

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

import fineweb_mask
from fineweb_mask.flows.curate import curate
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.summary import RunSummary
from tests.tasks.training_files.conftest import save_tokenizer
from tests.warc import Answer, page_of, warc_bytes

pytestmark = pytest.mark.filterwarnings("ignore:The 'registered_domain' property:DeprecationWarning")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", 1_000)


@pytest.fixture
def run_raw_web(server: None, sample_corpus: Path, tokenizer: Path, tmp_path: Path) -> Any:
    """Run the recipe with a trained classifier, the built-in encoder and a small tokenizer."""

    def run(source: Path, *overrides: str) -> RunSummary:
        scorer = {"kind": "fasttext", "labels": {"path": str(sample_corpus / "labels.parquet"), "threshold": 3}}
        settings = load_recipe(
            ROOT / "deployments" / "recipes" / "raw-web.yaml",
            [
                f"source.path={source}",
                f"quality.scorers=[{json.dumps(scorer)}]",
                "embedding.model=static",
                "embedding.static_dimensions=64",
                "selection.select_ratio=0.5",
                f"materialize.export=[{{format: megatron, tokenizer: {tokenizer}}}, {{format: parquet}}]",
                *overrides,
            ],
            str(tmp_path / "workspace"),
        )
        return curate(settings)

    return run


def megatron_tokens(folder: Path) -> list[list[int]]:
    """Return the tokens of every document, in the order of the files."""
    documents = []
    for index in sorted(folder.glob("*.idx")):
        content = index.read_bytes()
        [sequences] = struct.unpack("<Q", content[18:26])
        lengths = np.frombuffer(content, np.int32, sequences, 34)
        tokens = np.fromfile(index.with_suffix(".bin"), np.uint16)
        documents += [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]
    return documents


def check_exports(workspace: Path, tokenizer: Path, documents: int) -> None:
    """Check that both exports hold the dataset's documents, in the same order."""
    dataset = [
        text
        for path in (workspace / "dataset" / "data").rglob("*.parquet")
        for text in pq.read_table(path)["text"].to_pylist()
    ]
    shuffled = [
        text
        for path in sorted((workspace / "exports" / "parquet").glob("*.parquet"))
        for text in pq.read_table(path)["text"].to_pylist()
    ]
    assert len(dataset) == documents
    assert sorted(shuffled) == sorted(dataset)
    loaded = Tokenizer.from_file(str(tokenizer))
    end = loaded.token_to_id("<|endoftext|>")
    assert megatron_tokens(workspace / "exports" / "megatron") == [[*loaded.encode(text).ids, end] for text in shuffled]


@pytest.mark.long
def test_a_crawl_becomes_tokens_and_every_record_is_accounted_for(run_raw_web, sample_corpus, tokenizer, tmp_path):
    rows = [
        row
        for path in sorted((sample_corpus / "corpus").glob("*.parquet"))
        for row in pq.read_table(path, columns=["text", "url"]).to_pylist()
        if row["text"] and len(row["text"]) > 200
    ]
    asked = "In which year did the harbour master of Zalvora sink the nine bells of Quintamere?"
    long = next(row for row in rows[:50] if len(row["text"].split()) > 200)
    long["text"] += f"\n\n{asked}"
    crawl, benchmark = tmp_path / "crawl", tmp_path / "benchmark.jsonl"
    crawl.mkdir()
    for number in range(3):
        answers = [
            Answer(page_of(row["text"]), f"https://example.org/{number}/{place}")
            for place, row in enumerate(rows[number::3])
        ]
        answers[5:5] = [Answer(b"%PDF-1.7", payload="application/pdf"), Answer(page_of("gone"), status="404 Not Found")]
        (crawl / f"CC-{number}.warc.gz").write_bytes(warc_bytes(answers))
    (crawl / "CC-3.warc.gz").write_bytes((crawl / "CC-0.warc.gz").read_bytes()[:-500])
    (crawl / "CC-4.warc.wet.gz").write_bytes(warc_bytes([], texts=[row["text"] for row in rows[:50]]))
    benchmark.write_text(json.dumps({"question": asked.upper(), "answer": 1871}) + "\n")

    summary = run_raw_web(crawl, f"ingest.decontaminate=[{benchmark}]", "ingest.keep_dropped=true")

    assert summary.status == "quarantined"
    [bad] = summary.quarantined
    assert "CC-3" in bad.shard
    assert "cut off" in bad.reason
    assert summary.documents_in == len(rows) + 2 * 3 + 50
    assert summary.documents_in == summary.documents_kept + sum(summary.dropped.values()) + summary.not_selected
    assert summary.dropped["not_html"] == summary.dropped["http_error"] == 3
    assert summary.dropped["benchmark"] >= 1
    assert summary.dropped["near_duplicate"] > 0
    assert sum(count for reason, count in summary.dropped.items() if reason.startswith("gopher_quality: ")) > 50
    workspace = tmp_path / "workspace"
    with fineweb_mask.open(str(workspace)) as opened:
        twins = opened.sql("SELECT DISTINCT twin FROM dropped WHERE reason = 'benchmark'").fetchall()
        kept = Counter(dict(opened.sql("SELECT reason, count(*) FROM dropped GROUP BY reason").fetchall()))
        texts = opened.sql(
            "SELECT count(*) FROM dropped WHERE starts_with(reason, 'gopher') AND text IS NULL"
        ).fetchall()
    of_ingest = {name: count for name, count in summary.dropped.items() if name not in {"near_duplicate", "duplicate"}}
    assert {name: kept[name] for name in of_ingest} == of_ingest
    assert texts == [(0,)]
    assert twins == [("benchmark.jsonl row 0, question, score 1.00",)]
    check_exports(workspace, tokenizer, summary.documents_kept)
    again = run_raw_web(crawl, f"ingest.decontaminate=[{benchmark}]", "ingest.keep_dropped=true")
    assert {stage.stage: stage.files - stage.cached for stage in again.stages if stage.files != stage.cached} == {
        "ingest": 1  # the file that is cut off is tried again
    }
