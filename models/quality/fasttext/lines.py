"""Convert a column of texts to lines for fastText, without a Python call per text.

fastText ends a line at a newline or at its end-of-line word, and splits words at ASCII white space only; Python splits
at Unicode white space, too. All of these are overwritten with spaces in a copy of the column's UTF-8 bytes: no text
changes its length in bytes, and fastText reads a run of spaces as one.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

NEWLINE, SPACE = 10, 32
CHUNK_BYTES = 2**17  # a chunk and its masks fit into the processor's cache
END_OF_LINE = b"</s>"
SEPARATORS = tuple(  # where `str.split` splits and fastText does not: one array per length in UTF-8 bytes
    np.array([int.from_bytes(chr(code).encode()) for code in codes], dtype=np.uint32)
    for codes in (
        range(0x1C, 0x20),
        (0x85, 0xA0),
        (0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
    )
)
_EMPTY, _END = (pa.scalar(value, pa.large_binary()) for value in (b"", b"\n"))


def fasttext_lines(texts: pa.Array, lowercase: bool) -> list[bytes]:
    """Return each of (n,) strings without nulls as one UTF-8 line that ends with a newline, for `multilinePredict`.

    `lowercase` converts as `str.lower` does.
    """
    texts = texts.cast(pa.large_string())
    if lowercase:
        texts = _lower_case(texts)
    lines = pc.binary_join_element_wise(texts.cast(pa.large_binary()), _EMPTY, _END)  # a copy, changed below
    _, offsets, content = lines.buffers()
    if len(lines):
        ends = np.frombuffer(offsets, np.int64)[1 : len(lines) + 1] - 1
        data = np.frombuffer(content, np.uint8)[: ends[-1] + 1]
        candidates = _overwrite_newlines(data)
        data[ends] = NEWLINE
        _overwrite_separators(data, candidates)
    return list(lines.to_pylist())


def _lower_case(texts: pa.Array) -> pa.Array:
    """Return the texts in lower case; Arrow's kernel differs from Python's for some letters outside ASCII."""
    not_ascii = pc.invert(pc.string_is_ascii(texts))
    lowered = pa.array([text.lower() for text in texts.filter(not_ascii).to_pylist()], pa.large_string())
    return pc.replace_with_mask(pc.ascii_lower(texts), not_ascii, lowered)


def _overwrite_newlines(data: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Replace newlines in (bytes,) by spaces; return the indices (m,) of bytes that may begin a separator.

    Candidates are 1C-1F, 3C-3F, C0-C3 and E0-E3, which one mask of bits finds.
    """
    bits, matches, more = np.empty(CHUNK_BYTES, np.uint8), np.empty(CHUNK_BYTES, bool), np.empty(CHUNK_BYTES, bool)
    candidates = []
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = data[start : start + CHUNK_BYTES]
        masked, is_match, is_other = (scratch[: len(chunk)] for scratch in (bits, matches, more))
        np.equal(chunk, NEWLINE, out=is_match)
        np.multiply(is_match.view(np.uint8), np.uint8(SPACE - NEWLINE), out=masked)
        np.add(chunk, masked, out=chunk)
        np.bitwise_and(chunk, 0xDC, out=masked)
        np.equal(masked, 0x1C, out=is_match)
        np.equal(masked, 0xC0, out=is_other)
        np.logical_or(is_match, is_other, out=is_match)
        candidates.append(np.flatnonzero(is_match) + start)
    return np.concatenate(candidates)


def _overwrite_separators(data: NDArray[np.uint8], candidates: NDArray[np.intp]) -> None:
    first = data[candidates]
    end_of_line = candidates[first == END_OF_LINE[0]]
    for offset, byte in enumerate(END_OF_LINE[1:], start=1):  # the newline at a line's end stops a match
        end_of_line = end_of_line[data[end_of_line + offset] == byte]
    _overwrite(data, end_of_line, len(END_OF_LINE))
    for separators, begins in zip(SEPARATORS, (first < 0x20, first == 0xC2, first >= 0xE0), strict=True):
        found = candidates[begins]
        length = (int(separators[0]).bit_length() + 7) // 8
        code = np.zeros(len(found), np.uint32)
        for offset in range(length):
            code = code << 8 | data[found + offset]
        _overwrite(data, found[np.isin(code, separators)], length)


def _overwrite(data: NDArray[np.uint8], found: NDArray[np.intp], length: int) -> None:
    for offset in range(length):
        data[found + offset] = SPACE
