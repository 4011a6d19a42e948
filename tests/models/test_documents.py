"""Documents: hashes, ids, types, reasons to drop, token counts."""

import hashlib
import math

import pyarrow as pa

from fineweb_mask.models.documents import (
    CHARS_PER_TOKEN,
    DocumentFilter,
    conform,
    content_hash,
    stable_id,
)
from fineweb_mask.models.schemas import FINEWEB, documents_schema
from fineweb_mask.models.settings import IngestSettings

LONG = "a sentence that is long enough"
ANY = IngestSettings(min_chars=1, exact_dedup="off")


def documents(**columns):
    return conform(pa.record_batch(columns), {}, [])


def filtered(settings, problems=None, source="shard.parquet", **columns):
    chosen = DocumentFilter(settings, source)
    return chosen, chosen.apply(documents(**columns), problems)


def counts(chosen):
    return {reason: count for reason, count in chosen.dropped.items() if count}


def test_content_hash_ignores_case_and_white_space_and_nothing_else_and_an_id_is_of_file_and_row():
    same, others = ("THE Cat sat", "  the\tcat\n\nsat ", "the\u00a0cat\u2003sat"), ("thecat sat", "the cat sat.", "")
    assert {content_hash(text) for text in same} == {hashlib.blake2b(b"the cat sat", digest_size=16).digest()}
    assert content_hash("the cat sat") not in {content_hash(text) for text in others}
    assert stable_id("a.parquet", 3) == "fineweb-mask:765d63bba6d3801a45593ced721662ee"
    assert len({stable_id(source, row) for source in ("a", "b", "a1") for row in range(12)}) == 36


def test_conform_reads_every_kind_of_text_fills_missing_columns_renames_and_carries_extra():
    for texts in (pa.array(["x", None], pa.large_string()), pa.array(["x", None]).dictionary_encode(), [b"x", None]):
        assert documents(text=texts).schema == FINEWEB
        assert documents(text=texts)["text"].to_pylist() == ["x", None]
    raw = pa.record_batch({"body": ["x"], "key": [7], "token_count": pa.array([3], pa.int8()), "more": [[1, 2]]})
    extra = [raw.schema.field("more"), pa.field("absent", pa.float32())]
    [row] = conform(raw, {"text": ("body",), "id": ("key",)}, extra).to_pylist()
    given = {"text": "x", "id": "7", "token_count": 3, "more": [1, 2]}
    assert row == dict.fromkeys([*FINEWEB.names, "absent"]) | given


def test_every_drop_is_counted_by_its_first_reason():
    settings = IngestSettings(min_chars=10, languages=["en"], min_language_score=0.5, exact_dedup="shard")
    rows = [  # text, language, score; every row but the last fails all later checks too, where it can
        (None, "fr", 0.1, "null_text"),
        (b"\xff", "fr", 0.1, "invalid_utf8"),
        (b" \n\t\xc2\xa0 ", "fr", 0.1, "empty_text"),
        (b"short", "fr", 0.1, "too_short"),
        (LONG.encode(), "fr", 0.1, "wrong_language"),
        (LONG.encode(), "en", 0.1, "low_language_score"),
        (LONG.encode(), "en", 0.5, None),
        (LONG.upper().encode(), "en", 0.9, "duplicate"),
        (b"another text, long enough", None, None, None),
    ]
    texts, languages, scores, reasons = zip(*rows, strict=True)
    chosen, kept = filtered(settings, text=texts, language=languages, language_score=scores)
    assert counts(chosen) == {reason: 1 for reason in reasons if reason}
    assert kept["text"].to_pylist() == [LONG, "another text, long enough"]
    assert (chosen.rows_in, chosen.rows_kept) == (9, 2)
    problems = pa.array(["broken_row", None, "wrong_type"])  # of rows that could not be read
    chosen, kept = filtered(ANY, problems, text=[None, "fine", None])
    assert counts(chosen) == {"broken_row": 1, "wrong_type": 1}
    assert kept["id"].to_pylist() == [stable_id("shard.parquet", 1)]


def test_the_first_of_equal_texts_stays_across_batches():
    for dedup, kept in {"off": ["c", "d"], "shard": ["d"], "corpus": ["d"]}.items():
        chosen = DocumentFilter(IngestSettings(min_chars=1, exact_dedup=dedup), "s")
        assert chosen.apply(documents(text=["one text", "other text"], id=["a", "b"]))["id"].to_pylist() == ["a", "b"]
        assert chosen.apply(documents(text=["ONE  text", "new text"], id=["c", "d"]))["id"].to_pylist() == kept


def test_rows_ids_and_measures_are_filled_in_over_batches():
    """The shortest text that is kept has `min_chars` characters, of whatever number of bytes."""
    chosen = DocumentFilter(IngestSettings(min_chars=3), "s")
    chosen.apply(documents(text=["abc", "xé"], id=["given", "lost"]))
    kept = chosen.apply(documents(text=["y", "dęf g", "hij"], id=["lost", None, ""]))
    assert kept.schema == documents_schema()
    assert kept["row"].to_pylist() == [1, 2]
    assert kept["id"].to_pylist() == [stable_id("s", 3), stable_id("s", 4)]
    assert kept["n_chars"].to_pylist() == [5, 3]
    assert kept["content_hash"].to_pylist() == [content_hash("dęf g"), content_hash("hij")]
    nothing = chosen.apply(documents(text=["x"]))
    assert (nothing.num_rows, nothing.schema) == (0, documents_schema())


def test_tokens_are_added_up_before_and_after_the_filter_and_impossible_counts_are_lost():
    texts = ["too short", "long enough", "x" * 46, None, f"{LONG} 1", f"{LONG} 2", f"{LONG} 3"]
    given = [5, 6, None, None, 2**63 - 1, -1, 2**31 - 1]
    chosen, batch = filtered(IngestSettings(min_chars=10), text=texts, token_count=pa.array(given))
    assert chosen.lost == {"token_count": 2}
    assert batch["token_count"].to_pylist() == [6, None, None, None, 2**31 - 1]
    kept = 6 + 10 + 2 * math.ceil(len(texts[-1]) / CHARS_PER_TOKEN) + 2**31 - 1
    assert (chosen.tokens_in, chosen.tokens_kept, chosen.tokens_estimated) == (5 + kept, kept, 3)


def test_invalid_utf8_within_nested_columns_drops_its_row_only():
    bad = pa.array([b"\xff", b"ok"]).cast(pa.string(), safe=False)
    nested = pa.ListArray.from_arrays([0, 1, 2], bad)
    rows = conform(pa.record_batch({"text": [LONG, f"{LONG}."], "x": nested}), {}, [pa.field("x", nested.type)])
    chosen = DocumentFilter(ANY, "a")
    assert chosen.apply(rows)["x"].to_pylist() == [["ok"]]
    assert counts(chosen) == {"invalid_utf8": 1}
