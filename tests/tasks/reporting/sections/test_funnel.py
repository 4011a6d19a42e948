"""Where documents went: columns that are kept as text are named."""

from fineweb_mask.tasks.reporting.sections.funnel import funnel
from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles


def test_columns_whose_types_differ_are_named_with_their_types() -> None:
    def shard(name: str, **types: str) -> ShardFiles:
        file = NO_FILE.model_copy(update={"name": name, "details": {"as_text": types} if types else {}})
        return ShardFiles(documents=file)

    shards = [shard("a", meta="struct<a: int64>"), shard("b"), shard("c", meta="list<item: string>", n="binary")]
    documents = dict.fromkeys(Counts.model_fields, 0) | {"dropped": {}}
    meta, n = funnel(Counts.model_validate(documents), shards).text
    assert meta.startswith("The column 'meta' is kept as text")
    assert meta.endswith("list<item: string> in 1, struct<a: int64> in 1.")
    assert n.endswith("binary in 1.")
    assert not funnel(Counts.model_validate(documents), [shard("b")]).text
