"""Whole columns of texts as lines for fastText, without a Python call per text.

fastText ends a line at a newline or at its end-of-line word, and splits words at ASCII white space; Python also knows
Unicode's. All of these are overwritten with spaces in the column's own UTF-8 bytes: no character changes its length in
bytes, and fastText reads a run of spaces as one.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

NEWLINE, SPACE = 10, 32
CHUNK_BYTES = 2**17  # a chunk and its masks stay in the processor's cache
SEPARATORS = (  # what `str.split` splits at and fastText does not, then fastText's end-of-line word
    *(bytes([control]) for control in range(0x1C, 0x20)),
    *(character.encode() for character in "\u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000"),
    *(chr(code).encode() for code in range(0x2000, 0x200B)),
    b"</s>",
)
_EMPTY, _END = (pa.scalar(value, pa.large_binary()) for value in (b"", b"\n"))


def fasttext_lines(texts: pa.Array, max_chars: int | None, lowercase: bool) -> list[bytes]:
    """Return every text as one UTF-8 line that ends with a newline, for `multilinePredict`.

    Parameters
    ----------
    texts
        Strings (n,) without nulls.
    max_chars
        Characters read per text; None reads all.
    lowercase
        Lower-case first, as `str.lower` does.
    """
    texts = texts.cast(pa.large_string())
    if max_chars is not None:
        texts = pc.utf8_slice_codeunits(texts, 0, max_chars)
    if lowercase:
        texts = _lowered(texts)
    lines = pc.binary_join_element_wise(texts.cast(pa.large_binary()), _EMPTY, _END)  # a copy of our own
    _, offsets, content = lines.buffers()
    if len(lines):
        ends = np.frombuffer(offsets, np.int64)[1 : len(lines) + 1] - 1
        data = np.frombuffer(content, np.uint8)[: ends[-1] + 1]
        _overwrite_newlines(data)
        data[ends] = NEWLINE
        _overwrite_separators(data)
    return list(lines.to_pylist())


def _lowered(texts: pa.Array) -> pa.Array:
    """Return the texts in lower case; Arrow's own kernel differs from Python's for some letters beyond ASCII."""
    lowered = pc.ascii_lower(texts)
    beyond = pc.invert(pc.string_is_ascii(texts))
    return pc.replace_with_mask(
        lowered, beyond, pa.array([text.lower() for text in texts.filter(beyond).to_pylist()], pa.large_string())
    )


def _overwrite_newlines(data: NDArray[np.uint8]) -> None:
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = data[start : start + CHUNK_BYTES]
        chunk += (chunk == NEWLINE).view(np.uint8) * np.uint8(SPACE - NEWLINE)


def _overwrite_separators(data: NDArray[np.uint8]) -> None:
    candidates = _candidates(data)
    first = data[candidates]
    for separator in SEPARATORS:
        found = candidates[first == separator[0]]
        for place, byte in enumerate(separator[1:], start=1):  # the newline at a line's end stops a match
            found = found[data[found + place] == byte]
        for place in range(len(separator)):
            data[found + place] = SPACE


def _candidates(data: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return where a separator may begin: its first byte is in 1C-1F, 3C-3F, C0-C3 or E0-E3, and these share bits."""
    places = []
    for start in range(0, len(data), CHUNK_BYTES):
        bits = data[start : start + CHUNK_BYTES] & 0xDC
        places.append(np.flatnonzero((bits == 0x1C) | (bits == 0xC0)) + start)
    return np.concatenate(places)
