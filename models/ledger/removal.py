"""Recognise the documents that were removed on request, by digests of what names them and of their texts."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.documents import content_hash

Kind = Literal["url", "id", "domain", "text"]
"""What a document is named by."""
KINDS: tuple[Kind, ...] = get_args(Kind)
DIGEST_BYTES = 16
Digests = NDArray[np.bytes_]
"""Digests in ascending order, each once: (n,) of 16 bytes."""

URL = re.compile(r"(?is)\s*(?:[a-z][a-z0-9+.-]*://)?(?:www\.)?([^/?#\s]*)([^#]*?)/?\s*(?:#.*)?")
HOST = re.compile(r"(?:.*@)?([^:]*)(?::\d*)?", re.DOTALL)


def address(url: str) -> str:
    """Return what is compared of a URL: neither the scheme, `www.`, a fragment, a slash at the end, nor a host's case.

    Examples
    --------
    >>> address("HTTPS://www.Example.org/Page/#top"), address("example.org/Page")
    ('example.org/Page', 'example.org/Page')
    """
    found = URL.fullmatch(url)
    return url if found is None else found[1].lower() + found[2]


def domains(url: str) -> list[str]:
    """Return the host of a URL and the domains that it is in, without those of one word.

    Examples
    --------
    >>> domains("https://Blog.Example.org:8080/a")
    ['blog.example.org', 'example.org']
    """
    found = HOST.fullmatch(re.split("[/?]", address(url), maxsplit=1)[0])
    host = "" if found is None else found[1].rstrip(".")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            return []
    words = host.split(".")
    return [".".join(words[place:]) for place in range(len(words) - 1)]


def digest_of(kind: Kind, name: str) -> bytes:
    """Return the digest of a URL, an id, a domain or a text: 16 bytes, that of a text is its `content_hash`.

    Examples
    --------
    >>> digest_of("url", "http://example.org/") == digest_of("url", "https://www.EXAMPLE.org")
    True
    """
    if kind == "text":
        return content_hash(name)
    if kind != "id":
        name = address(name) if kind == "url" else next(iter(domains(name)), name)
    return _digest(name)


def in_order(digests: Iterable[bytes]) -> Digests:
    """Return digests in ascending order, each once; an iterator is read in the memory of what it yields."""
    joined = bytearray()
    for digest in digests:
        joined += digest
    return np.unique(np.frombuffer(bytes(joined), f"S{DIGEST_BYTES}"))


def is_in(digests: Digests, known: Digests) -> NDArray[np.bool_]:
    """Return whether each digest, (n,), is one of the known ones, in ascending order: (n,)."""
    if not len(known):
        return np.zeros(len(digests), dtype=bool)
    places = np.minimum(np.searchsorted(known, digests), len(known) - 1)
    return np.asarray(known[places] == digests)


class Unwanted:
    """What documents are recognised by.

    Parameters
    ----------
    digests
        In ascending order, by kind.

    Examples
    --------
    >>> unwanted = Unwanted({"domain": in_order([digest_of("domain", "example.org")])})
    >>> unwanted(["1", "2"], ["https://a.example.org/", None], [bytes(16), bytes(16)]).tolist()
    [True, False]
    """

    def __init__(self, digests: Mapping[Kind, Digests]) -> None:
        self._digests = {kind: own for kind, own in digests.items() if len(own)}

    def __call__(self, ids: Sequence[str], urls: Sequence[str | None], hashes: Sequence[bytes]) -> NDArray[np.bool_]:
        """Return which of n documents are recognised, (n,), by their ids, URLs and `content_hash`."""
        return self.found(ids, urls, hashes)[0]

    def found(
        self, ids: Sequence[str], urls: Sequence[str | None], hashes: Sequence[bytes]
    ) -> tuple[NDArray[np.bool_], dict[Kind, Digests]]:
        """Return which of n documents are recognised, (n,), and by which digests."""
        known: Mapping[Kind, Callable[[], Iterator[tuple[int, bytes]]]] = {
            "url": lambda: ((row, digest_of("url", url)) for row, url in enumerate(urls) if url),
            "id": lambda: ((row, digest_of("id", name)) for row, name in enumerate(ids)),
            "domain": lambda: ((row, _digest(name)) for row, url in enumerate(urls) if url for name in domains(url)),
            "text": lambda: enumerate(hashes),
        }
        is_found, by = np.zeros(len(ids), dtype=bool), dict[Kind, Digests]()
        for kind, own in self._digests.items():
            pairs = list(known[kind]())
            named = np.frombuffer(b"".join(digest for _, digest in pairs), f"S{DIGEST_BYTES}")
            hit = is_in(named, own)
            is_found[np.array([row for row, _ in pairs], dtype=np.int64)[hit]] = True
            by[kind] = np.unique(named[hit])
        return is_found, by


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()[:DIGEST_BYTES]
