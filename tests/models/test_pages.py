# ruff: noqa: RUF001 - languages have letters that look alike
"""The encoding of a page: that of its mark, its server, its tag, or the one in which its bytes are letters."""

import pytest

pytest.importorskip("trafilatura")
pytest.importorskip("webencodings")

from fineweb_mask.models.pages import codec_of, extract_text

WESTERN = "Die Käuferin grüßt den Bäcker und zählt die Brötchen, die sie über die Straße trägt."
RUSSIAN = "Съешь ещё этих мягких французских булок, да выпей чаю; корабль идёт по широкой реке."
LITHUANIAN = "Šiandien oras gražus, todėl eisime pasivaikščioti į parką prie upės."
JAPANESE = "今日は天気がいいので、公園へ散歩に行きました。そこで古い友達に会いました。"
CHINESE = "今天天气很好，我们去公园散步，遇见了一位老朋友，聊了很久才回家。"
KOREAN = "오늘은 날씨가 좋아서 공원에 산책하러 갔습니다. 거기서 오랜 친구를 만났습니다."


def page_of(text, head=""):
    paragraphs = "".join(f"<p>{' '.join([text] * 3)}</p>" for _ in range(3))
    return f"<html><head>{head}</head><body><article>{paragraphs}</article></body></html>"


def is_right(text, page, charset=""):
    return (extract_text(page, charset) or "").count(text) == 9


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("iso-8859-1", "cp1252", "The “price” is €20 for a room – naïve visitors pay €35 at the door of the museum."),
        ("CP1251", "cp1251", RUSSIAN),
        ("tis-620", "cp874", "วันนี้อากาศดีมาก เราจึงไปเดินเล่นที่สวนสาธารณะริมแม่น้ำ"),
        ("shift_jis", "cp932", JAPANESE + "㈱①髙"),
        ("iso-2022-jp", "iso2022_jp", JAPANESE),
        ("gb2312", "gb18030", CHINESE + "镕囍𠀀"),
        ("big5", "big5hkscs", "今天天氣很好，我們去公園散步，遇見了一位老朋友，聊了很久才回家。"),
        ("ks_c_5601-1987", "cp949", KOREAN + "똠방각하"),
        ("utf-16", "utf-16-le", LITHUANIAN),
    ],
)
def test_the_encoding_that_the_server_names_is_the_pages(label, encoding, text):
    assert is_right(text, page_of(text).encode(encoding), label)


@pytest.mark.parametrize(
    "head",
    [
        "<META CHARSET = 'KOI8-R' />",
        "<meta content='text/html;charset=koi8-r' http-equiv=content-type>",
        "<!-- <meta charset=utf-8> --><meta charset=koi8-r>",
        "<meta name=description content='charset=utf-8'><meta charset=none><meta charset=koi8-r>",
        "<script>'<meta charset=greek>'</script><style>a {}</style>" + " " * 1_500 + "<meta charset=koi8-r>",
    ],
)
def test_then_the_pages_own_tag_counts(head):
    assert is_right(RUSSIAN, page_of(RUSSIAN, head).encode("koi8-r"))


def test_then_the_declaration_of_xml_counts_and_the_server_is_believed_before_the_page():
    declared = '<?xml version="1.0" encoding="windows-1257"?>'
    assert is_right(LITHUANIAN, (declared + page_of(LITHUANIAN)).encode("cp1257"))
    page = declared + page_of(RUSSIAN, "<meta charset=windows-1251 />")
    assert is_right(RUSSIAN, page.encode("cp1251"))
    assert is_right(RUSSIAN, page.encode("koi8-r"), "koi8-r")
    assert is_right(RUSSIAN, page.encode("cp1251"), "none")
    assert not is_right(RUSSIAN, page.encode("cp1251"), "koi8-r")  # as browsers do


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le"])
def test_a_byte_order_mark_is_believed_first(encoding):
    page = f"\ufeff{page_of(LITHUANIAN, '<meta charset=windows-1257>')}".encode(encoding)
    for charset in ("", "windows-1252", "utf-16be"):
        assert is_right(LITHUANIAN, page, charset)
        assert is_right(LITHUANIAN, page[:-1], charset)


@pytest.mark.parametrize("charset", ["", "utf-8", "utf-16", "none"])
def test_pages_in_utf_8_are_read_so_also_where_they_are_cut_off(charset):
    for text in (LITHUANIAN, "The tide is out, and the boats lie on the sand."):
        page = page_of(text, "<meta charset=shift_jis>").encode()
        assert is_right(text, page, charset)
        assert is_right(text, page + "į".encode()[:1], charset)


@pytest.mark.parametrize(
    ("text", "tag", "encoding", "charset"),
    [
        (LITHUANIAN, "none", "utf-8", "iso-8859-1"),  # utf-8 to its end
        (RUSSIAN, "windows-1251", "cp1251", "utf-8"),
        (KOREAN, "euc-kr", "cp949", "utf-8"),
        (WESTERN, "utf-8", "iso-8859-1", "utf-8"),  # a guess
    ],
)
def test_an_encoding_in_which_most_of_a_page_does_not_exist_is_not_the_pages(text, tag, encoding, charset):
    assert is_right(text, page_of(text, f"<meta charset={tag}>").encode(encoding), charset)


def test_a_few_bytes_that_are_wrong_cost_only_themselves():
    page = page_of(LITHUANIAN).encode().replace(b"<p>", b"<p>\xe4 ", 1)
    assert "\ufffd Šiandien oras gražus" in extract_text(page, "utf-8")
    page = page_of(JAPANESE).encode("euc_jp").replace(b"<p>", b"<p>\xad\xa1 ", 1)  # a character of NEC's own
    assert is_right(JAPANESE, page, "euc-jp")
    assert f"\ufffd\ufffd {JAPANESE}" in extract_text(page, "euc-jp")
    assert codec_of("none") is None
    with pytest.raises(LookupError):
        codec_of("iso-2022-cn")
