"""Check that a file is a complete fastText model.

fastText itself does not check: given a truncated file, it reads uninitialised memory and scores with it, or allocates
as much memory as stray bytes demand. Layout: `FastText::saveModel`, `Dictionary::save`, `DenseMatrix::save`,
`QuantMatrix::save` and `ProductQuantizer::save` of fastText 0.9 (https://github.com/facebookresearch/fastText).
"""

import mmap
import struct
from pathlib import Path

from fineweb_mask.models.errors import ModelError

MAGIC, VERSIONS = 793_712_314, (11, 12)
CENTROIDS = 256  # of a product quantizer
FLOAT = 4  # bytes
SUPERVISED = 3
ARGUMENTS = struct.Struct("<12i d")  # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, ...
MODEL_ARGUMENT = 7


class FastTextFormatError(ModelError):
    """The file is not a complete supervised fastText model."""


class _Reader:
    """Move through a file without reading the skipped parts; moving past the end raises EOFError."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._position = 0

    def skip(self, size: int) -> None:
        if size < 0 or self._position + size > len(self._content):
            raise EOFError
        self._position += size

    def read(self, layout: str | struct.Struct) -> tuple[int, ...]:
        layout = struct.Struct(layout) if isinstance(layout, str) else layout
        start = self._position
        self.skip(layout.size)
        return layout.unpack_from(self._content, start)

    def skip_word(self) -> None:
        end = self._content.find(b"\0", self._position)
        self.skip(end + 1 - self._position)


def check_fasttext_file(path: str) -> None:
    """Raise FastTextFormatError unless a file is a supervised fastText model, complete to the last byte."""
    file = Path(path)
    if not file.is_file():
        raise FastTextFormatError(f"{path} cannot be opened: no such file")
    if file.stat().st_size < 8:
        raise FastTextFormatError(f"{path} is not a fastText model: it has {file.stat().st_size} bytes")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        reader = _Reader(content)
        magic, version = reader.read("<2i")
        if magic != MAGIC or version not in VERSIONS:
            raise FastTextFormatError(
                f"{path} is not a fastText model: give a .bin or .ftz file written by fastText, not vectors or text"
            )
        try:
            _check_content(reader, path)
        except EOFError as error:
            raise FastTextFormatError(
                f"{path} is cut short or damaged, at {len(content):,} bytes: copy or download it again"
            ) from error


def _check_content(reader: _Reader, path: str) -> None:
    if reader.read(ARGUMENTS)[MODEL_ARGUMENT] != SUPERVISED:
        raise FastTextFormatError(f"{path} holds word vectors, not a classifier: give a supervised fastText model")
    entries, words, labels, _tokens, pruned = reader.read("<3i 2q")
    if entries != words + labels or labels < 1:
        raise EOFError
    for _ in range(entries):
        reader.skip_word()
        reader.skip(8 + 1)  # count, type
    reader.skip(max(pruned, 0) * 8)
    quantised_input = reader.read("<?")[0]
    _skip_matrix(reader, quantised=bool(quantised_input))
    quantised_output = reader.read("<?")[0]
    _skip_matrix(reader, quantised=bool(quantised_input and quantised_output))


def _skip_matrix(reader: _Reader, *, quantised: bool) -> None:
    if not quantised:
        rows, columns = reader.read("<2q")
        reader.skip(rows * columns * FLOAT)
        return
    has_norms, rows, _columns, codes = reader.read("<? 2q i")
    reader.skip(codes)
    _skip_quantizer(reader)
    if has_norms:
        reader.skip(rows)
        _skip_quantizer(reader)


def _skip_quantizer(reader: _Reader) -> None:
    dimensions, _parts, _part, _last_part = reader.read("<4i")
    reader.skip(dimensions * CENTROIDS * FLOAT)
