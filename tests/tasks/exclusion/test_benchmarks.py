import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.exclusion.benchmarks import BenchmarksJob, list_benchmarks
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import ingest_job

QUESTION = "Which of these birds stands on one leg in shallow water while it waits for fish to come by?"
PAGE = "A page about the coast and about everything that lives there, written for children of nine years. "
TEXTS = [
    PAGE + "One",
    f"{PAGE} {QUESTION.upper().replace(' ', '  ')} The heron.",
    PAGE + " ".join(QUESTION.split()[:12]),
    PAGE + " ".join(QUESTION.split()[1:14]) + " and so on",
    "a short answer",
    "a short answer and some more words after it",
]


@pytest.fixture
def made(tmp_path):
    """Ingest six pages without what is in a benchmark, with other settings; return the file and the workspace."""
    (tmp_path / "benchmark.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("", QUESTION, "A short answer!"))
    )
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "pages.parquet")
    workspace = Workspace(tmp_path / "workspace")

    def make(**settings):
        job = BenchmarksJob(
            root=str(workspace.root), files=discover(SourceSettings(path=str(tmp_path / "benchmark.jsonl")))
        )
        source = SourceSettings(path=str(tmp_path / "pages.parquet"))
        [shard] = discover(source)
        found = ingest_job(workspace, shard, source, IngestSettings(min_chars=5, **settings))
        found = found.model_copy(update={"benchmarks": list_benchmarks(job)})
        return found, ingest(found)

    return make


def test_documents_with_thirteen_words_of_a_benchmark_are_dropped_and_listed(made):
    job, file = made()
    assert file.details["dropped"] == {"benchmark": 3}
    kept = pq.read_table(job.workspace.resolve(file))
    assert kept["source_row"].to_pylist() == [0, 2, 5]
    listed = pq.read_table(job.known_output).to_pylist()
    assert [(row["source_row"], row["twin"]) for row in listed] == [
        (1, "benchmark.jsonl row 1"),
        (3, "benchmark.jsonl row 1"),
        (4, "benchmark.jsonl row 2"),
    ]


def test_the_list_is_in_the_key_and_is_made_again_when_it_is_gone(made):
    job, _ = made()
    without = job.model_copy(update={"benchmarks": None})
    assert without.key != job.key
    assert made()[1].cached
    job.known_output.unlink()
    assert not made()[1].cached


def test_a_benchmark_without_texts_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": "Who?"}\n')
    files = discover(SourceSettings(path=str(tmp_path / "a.jsonl")))
    with pytest.raises(BadShardError, match=r"a\.jsonl: no column 'text'"):
        list_benchmarks(BenchmarksJob(root=str(tmp_path / "workspace"), files=files))
