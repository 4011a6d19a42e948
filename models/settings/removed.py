"""Name settings that are gone, with what to write instead."""

from typing import Any

REMOVED: dict[str, str] = {
    "embedding.long_documents": "is gone: of a long document the first max_tokens tokens are read",
    "embedding.precision": "is gone: leave it out, vectors are stored as float16",
    "engine.resources": "is gone: leave it out, every job takes one core; give nodes fewer by ray start --num-cpus",
    "engine.scratch": "is gone: set FINEWEB_MASK_SCRATCH in the environment of every machine",
    "ingest.copies.keep: best_score": "is gone: write earliest or longest, or name the wanted values of a column in "
    "ingest.copies.prefer",
    "ingest.copies.one_for_each": "is gone: name the values whose copies are wanted first in ingest.copies.prefer",
    "ingest.copy_text": "is gone: the workspace holds the texts; delete its folder `documents` after the dataset is "
    "published, or ingest smaller source files",
    "ingest.groups": "is in another section: write report.by",
    "ingest.near_dedup: semantic": "is gone: write minhash; documents of like vectors are kept apart by "
    "selection.solver: semdedup, or by selection.near_duplicates",
    "materialize.export.format: litdata": "is gone: convert the dataset's Parquet files with the library's own "
    "converter",
    "materialize.export.format: mds": "is gone: convert the dataset's Parquet files with the library's own converter",
    "materialize.format": "is gone, the files are Parquet: DuckDB writes lines of JSON: "
    "COPY (FROM 'dataset/**/*.parquet') TO 'x.jsonl.zst' (FORMAT json, COMPRESSION zstd)",
    "materialize.memory_limit": "is in another section: write engine.memory_limit",
    "materialize.spill": "is gone: leave it out, nothing is spilled while the dataset is written",
    "quality.raw": "is gone: add the scores up beforehand, in a column of the source, and take it with kind: column",
    "quality.scorers.buckets": "is gone: count beforehand, in a column of the source, and take it with kind: column",
    "quality.scorers.kind: classes": "is gone: write the labels beforehand, into a column of the source, and name it",
    "quality.scorers.kind: rules": "is gone: name a score of your own, or write scorers: [], and leave out what is no "
    "prose by ingest.filters",
    "quality.scorers.labels.label_column": "is gone: write 1 and 0 for its classes beforehand, and name that column "
    "score_column, with threshold: 1",
    "quality.scorers.labels.positive": "is gone, as label_column",
    "quality.scorers.labels.text_column": "is gone: name the column `text`",
    "quality.scorers.share": "is gone: compute Min-K% in a column of the source, and take it with kind: column",
    "report.map": "is gone: leave it out, fineweb-mask explore draws a map by t-SNE",
    "report.sample": "is gone: leave it out, 20,000 documents are sampled",
    "selection.block_budget": "is gone: leave it out, every block gives select_ratio",
    "selection.dsir": "is gone: leave it out, all examples of selection.targets are one target",
    "selection.given": "is gone: leave it out, and select from the new documents and the old ones together",
    "selection.groups.max_repeats": "is gone: leave it out, and repeat a group's documents in training",
    "selection.mean_field": "is gone: leave it out, lists of neighbours are exact; selection.block_size bounds them",
    "selection.metrics: cluster_coverage": "is gone: write facility",
    "selection.passes": "is gone: leave it out, as selection.scope",
    "selection.policy_gradient.min_batch": "is gone: leave it out, a batch has 8,192 documents or partial of all",
    "selection.quad": "is gone: leave it out, it reads quality: the model belongs to quality.scorers",
    "selection.quadmix.max_repeats": "is gone: leave it out, and repeat documents in training",
    "selection.quadmix.weights": "is gone: set weight of each scorer in quality.scorers",
    "selection.quality_sampling": "is gone: write selection.temperature",
    "selection.sample": "is gone: leave it out, as many documents are sampled as the cells take",
    "selection.scope": "is gone: leave it out, a corpus of more than block_size documents is cut into blocks of "
    "documents that are alike; selection.blocks: order cuts it as scope: block did",
    "selection.semdedup": "is gone: leave it out, and set selection.near_duplicates",
    "selection.targets.text_column": "is gone: name the column `text`",
    "selection.weigh_by": "is gone: leave it out, quality and diversity are means over what budget_by counts",
    "source.fingerprint": "is gone: a file is known by its size and date, or etag; copy it by cp -p or rsync -t",
    "source.max_document_bytes": "is gone: a document of more than 32 MiB is dropped; split it beforehand",
}
"""By key, without indices of lists, or by `key: value`, in alphabetical order: what is gone, what to write instead."""


def advice_on(key: str, value: Any = None) -> str | None:  # noqa: ANN401
    """Return what to write instead of a setting, or of one of its values, that is gone; None if it never was there.

    Parameters
    ----------
    key
        Dotted name, such as `quality.scorers.0.share`.
    value
        What the recipe gives it.

    Examples
    --------
    >>> REMOVED["answer.colour: mauve"] = "write blue"
    >>> advice_on("answer.0.colour", "mauve"), advice_on("answer.0.colour", "red")
    ('write blue', None)
    >>> del REMOVED["answer.colour: mauve"]
    """
    plain = ".".join(part for part in key.split(".") if not part.isdigit())
    section, _, name = plain.rpartition(".")
    found = (REMOVED.get(one) for one in (plain, f"{plain}: {value}", f"{section}: {name}"))
    return next((advice for advice in found if advice is not None), None)
