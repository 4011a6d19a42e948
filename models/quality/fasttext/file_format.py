"""Check that a file is a complete fastText model whose parts fit together.

fastText itself does not check: given a truncated file, it reads uninitialised memory and scores with it, or allocates
as much memory as stray bytes demand; given sizes that contradict each other, it reads beyond its matrices and ends the
process. Layout: `FastText::saveModel`, `Args::save`, `Dictionary::save`, `DenseMatrix::save`, `QuantMatrix::save` and
`ProductQuantizer::save` of fastText 0.9 (https://github.com/facebookresearch/fastText).
"""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fineweb_mask.models.errors import ModelError

MAGIC, VERSIONS = 793_712_314, (11, 12)
NO_CHARACTERS = 11  # the version whose classifiers know no n-grams of characters
CENTROIDS = 256  # per part of a product quantizer
FLOAT = 4  # bytes
SUPERVISED = 3
LOSSES = range(1, 5)
ARGUMENTS = "<12i d"  # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, ...
DIM, WORD_NGRAMS, LOSS, MODEL, BUCKET, MINN, MAXN = 0, 5, 6, 7, 8, 9, 10
ENTRY = "<x q b"  # the end of the word, count, type
WORD, LABEL = 0, 1
MOST_COUNTED = 10**15  # fastText's tree of the labels takes this for more than any count
LONGEST_NGRAM = 1_000  # words or characters; fastText takes time and memory for each length
NOT_PRUNED = -1


class FastTextFormatError(ModelError):
    """The file is not a complete supervised fastText model."""


class _ContradictionError(Exception):
    """Two parts of a file do not fit together."""


def _take(content: mmap.mmap, size: int) -> bytes:
    """Return the next bytes of a file; where there are fewer, EOFError is raised."""
    _skip(content, size)
    return content[content.tell() - size : content.tell()]


def _skip(content: mmap.mmap, size: int) -> None:
    if not 0 <= size <= len(content) - content.tell():
        raise EOFError
    content.seek(size, os.SEEK_CUR)


def _read(content: mmap.mmap, layout: str) -> tuple[int, ...]:
    return struct.unpack(layout, _take(content, struct.calcsize(layout)))


class _Sizes(NamedTuple):
    """What the matrices of a model must agree with."""

    dimensions: int
    rows: int  # input rows: words, and n-grams by their hashes
    labels: int


def check_fasttext_file(path: str) -> None:
    """Raise FastTextFormatError unless a file is a supervised fastText model, complete to the last byte."""
    file = Path(path)
    if not file.is_file():
        raise FastTextFormatError(f"{path} cannot be opened, there is no such file: give a .bin or .ftz file")
    if file.stat().st_size < 8:
        raise FastTextFormatError(f"{path} is not a fastText model: it has {file.stat().st_size} bytes")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        magic, version = _read(content, "<2i")
        if magic != MAGIC or version not in VERSIONS:
            raise FastTextFormatError(
                f"{path} is not a fastText model: give a .bin or .ftz file written by fastText, not vectors or text"
            )
        try:
            _check_content(content, path, version)
        except EOFError as error:
            raise FastTextFormatError(
                f"{path} is cut short or damaged, at {len(content):,} bytes: copy or download it again"
            ) from error
        except _ContradictionError as error:
            raise FastTextFormatError(f"{path} is damaged: {error}: copy or download it again") from error


def _check_content(content: mmap.mmap, path: str, version: int) -> None:
    arguments = _read(content, ARGUMENTS)
    if arguments[MODEL] != SUPERVISED:
        raise FastTextFormatError(f"{path} holds word vectors, not a classifier: give a supervised fastText model")
    sizes, is_pruned = _check_dictionary(content, arguments, version)
    quantised_input = _read_flag(content)
    _require(quantised_input or not is_pruned, "a pruned dictionary goes with a quantised matrix")
    _check_matrix(content, sizes.rows, sizes.dimensions, quantised=quantised_input)
    quantised_output = _read_flag(content)
    _check_matrix(content, sizes.labels, sizes.dimensions, quantised=quantised_input and quantised_output)


def _check_dictionary(content: mmap.mmap, arguments: tuple[int, ...], version: int) -> tuple[_Sizes, bool]:
    """Return the sizes that follow from the dictionary, and whether it is pruned."""
    dimensions, bucket, word_ngrams = arguments[DIM], arguments[BUCKET], arguments[WORD_NGRAMS]
    character_ngrams = 0 if version == NO_CHARACTERS else arguments[MAXN]
    _require(dimensions > 0, f"it has {dimensions} dimensions")
    _require(arguments[LOSS] in LOSSES, f"it has an unknown loss, {arguments[LOSS]}")
    lengths = [word_ngrams, arguments[MINN], arguments[MAXN]]
    _require(min(lengths) >= 0 and max(lengths) <= LONGEST_NGRAM, f"it has n-grams of {min(lengths)} to {max(lengths)}")
    has_ngrams = word_ngrams > 1 or character_ngrams > 0
    _require(bucket > 0 or (bucket == 0 and not has_ngrams), f"it has {bucket} buckets for n-grams")
    entries, words, labels, _tokens, pruned = _read(content, "<3i 2q")
    _require(
        words >= 0 and labels > 0 and entries == words + labels, f"{entries} entries, {words} words, {labels} labels"
    )
    for index in range(entries):
        word = _take(content, content.find(b"\0", content.tell()) - content.tell())
        count, kind = _read(content, ENTRY)
        _require(kind == (WORD if index < words else LABEL), f"entry {index} is of the wrong type")
        if kind == LABEL:
            _require(0 < count < MOST_COUNTED, f"label {index - words} has a count of {count}")
            _require(_is_utf8(word), f"label {index - words} is not UTF-8")
    if pruned == NOT_PRUNED:
        return _Sizes(dimensions, words + bucket, labels), False
    _require(0 <= pruned <= bucket, f"{pruned} n-grams of {bucket} are kept")
    places = np.frombuffer(_take(content, 8 * pruned), dtype="<i4")[1::2]
    _require(bool(((places >= 0) & (places < pruned)).all()), "an n-gram has a place outside of the matrix")
    return _Sizes(dimensions, words + pruned, labels), True


def _check_matrix(content: mmap.mmap, rows: int, columns: int, *, quantised: bool) -> None:
    if not quantised:
        _check_shape(_read(content, "<2q"), rows, columns)
        _skip(content, rows * columns * FLOAT)
        return
    has_norms = _read_flag(content)
    _check_shape(_read(content, "<2q"), rows, columns)
    [codes] = _read(content, "<i")
    _require(codes >= 0, f"a matrix has {codes} codes")
    _skip(content, codes)
    parts = _check_quantiser(content, columns)
    _require(codes == rows * parts, f"a matrix of {rows} rows in {parts} parts has {codes} codes")
    if has_norms:
        _skip(content, rows)
        _check_quantiser(content, 1)


def _check_shape(found: tuple[int, ...], rows: int, columns: int) -> None:
    _require(found == (rows, columns), f"a matrix is {found[0]} x {found[1]}, not {rows} x {columns}")


def _check_quantiser(content: mmap.mmap, columns: int) -> int:
    """Return into how many parts a row is divided."""
    dimensions, parts, part, last_part = _read(content, "<4i")
    _require(dimensions == columns and part > 0, f"a quantiser of {dimensions} dimensions has parts of {part}")
    expected = (-(-columns // part), columns % part or part)
    _require((parts, last_part) == expected, f"a quantiser has {parts} parts, the last of {last_part} dimensions")
    _skip(content, dimensions * CENTROIDS * FLOAT)
    return parts


def _read_flag(content: mmap.mmap) -> bool:
    [flag] = _read(content, "<B")
    _require(flag in (0, 1), f"a flag is {flag}")
    return bool(flag)


def _is_utf8(word: bytes) -> bool:
    try:
        word.decode()
    except UnicodeDecodeError:
        return False
    return True


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise _ContradictionError(otherwise)
