"""Documents are recognised by digests of their URLs, ids, domains and texts, and others are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.ledger.removal import KINDS, Unwanted, address, digest_of, domains, in_order, is_in


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("https://example.org/a", "http://www.example.org/a/"),
        ("https://EXAMPLE.org/a#b", "example.org/a"),
        (" https://example.org ", "example.org/"),
        ("https://example.org/a?b=1", "https://example.org/a?b=1#c"),
    ],
)
def test_urls_of_one_page_are_one(url, same):
    assert address(url) == address(same)
    assert digest_of("url", url) == digest_of("url", same)


@pytest.mark.parametrize(
    "other", ["https://example.org/A", "https://example.org/a?b", "https://b.example.org/a", "https://example.org/a/b"]
)
def test_urls_of_other_pages_are_others(other):
    assert digest_of("url", "https://example.org/a") != digest_of("url", other)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://a.b.example.org/x", ["a.b.example.org", "b.example.org", "example.org"]),
        ("http://www.example.org:80", ["example.org"]),
        ("https://user@Example.ORG./?u=http://other.net/", ["example.org"]),
        ("https://bücher.example/", ["xn--bcher-kva.example"]),
        ("http://localhost/", []),
        ("not a url", []),
        ("", []),
    ],
)
def test_a_host_is_in_its_domains(url, found):
    assert domains(url) == found


def test_a_domain_is_that_of_its_hosts_and_of_no_name_that_ends_like_it():
    unwanted = Unwanted({"domain": in_order([digest_of("domain", "example.org")])})
    urls = ["https://example.org/", "https://a.b.example.org/x", "https://notexample.org/", "https://example.org.net/"]
    assert unwanted("1234", urls, [bytes(16)] * 4).tolist() == [True, True, False, False]
    assert digest_of("domain", "bücher.example") == digest_of("domain", "xn--bcher-kva.example")


def test_a_text_is_recognised_whatever_its_case_and_white_space():
    unwanted = Unwanted({"text": in_order([digest_of("text", "Some  Text\n")])})
    assert unwanted("12", [None, None], [content_hash("some text"), content_hash("some texts")]).tolist() == [
        True,
        False,
    ]


@given(st.data())
def test_what_is_found_is_what_is_named_and_by_that_name(data):
    names = st.sampled_from(["a.example/1", "b.example/2", "x.a.example/3", "c.example"])
    ids = data.draw(st.lists(st.sampled_from("abc"), max_size=6))
    urls = [data.draw(st.none() | names) for _ in ids]
    hashes = [content_hash(data.draw(st.sampled_from(["one", "two"]))) for _ in ids]
    asked = {
        "url": data.draw(st.sets(names)),
        "id": data.draw(st.sets(st.sampled_from("ab"))),
        "domain": data.draw(st.sets(st.sampled_from(["a.example", "c.example"]))),
        "text": data.draw(st.sets(st.sampled_from(["one"]))),
    }
    digests = {kind: in_order(digest_of(kind, name) for name in asked[kind]) for kind in KINDS}
    found, by = Unwanted(digests).found(ids, urls, hashes)
    of = {
        "url": [{url} for url in urls],
        "id": [{name} for name in ids],
        "domain": [set(domains(url or "")) for url in urls],
        "text": [{text for text in ("one", "two") if content_hash(text) == own} for own in hashes],
    }
    assert found.tolist() == [any(of[kind][row] & asked[kind] for kind in KINDS) for row in range(len(ids))]
    for kind, own in by.items():
        hit = asked[kind] & set().union(*of[kind]) if ids else set()
        assert own.tolist() == in_order(digest_of(kind, name) for name in hit).tolist()


def test_digests_that_end_with_zeros_are_told_apart():
    known = in_order([bytes(15) + b"\1", b"\1" + bytes(15), bytes(16)])
    assert is_in(np.array([b"\1", b"", b"\1\1"], "S16"), known).tolist() == [True, True, False]
    assert len(known) == 3
