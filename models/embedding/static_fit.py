"""Fit the built-in encoder: static token vectors learned from the corpus, so that no model has to be downloaded.

The method is latent semantic analysis (Deerwester et al., 1990) in the form of a sentence-transformers
`StaticEmbedding`: the vector of a document is the mean of its tokens' vectors. Let A be the tf-idf matrix with each row
divided by its length to the power 3/4, and V its right singular vectors. The vector of token t is
idf_t^2 * V_t / |V_t|^(1/2): dividing by the root of the length keeps rare tokens, which have short rows in V, useful to
distinguish documents. The vectors are not centred, because the mean cosine, which measures the redundancy of a
selection, needs an origin that means "nothing in common".

The documents are read twice: the tokenizer learns from a bounded number of characters, and then the tokens are counted.
V comes from the sketch (A^T A) Q of the Gram matrix (Tropp et al., Fixed-Rank Approximation of a Positive-Semidefinite
Matrix from Streaming Data, 2017).

Equal texts in equal order give equal weights on any number of threads: threads share no sum, and the alphabet is chosen
here, because the trainer's hash maps order rare characters of equal frequency at random.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFKC, Lowercase
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer

from fineweb_mask.models.embedding.static import StaticModel
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.forward.tokens import in_batches, without_cache

BATCH = 512  # maximum documents tokenised at a time
BATCH_CHARACTERS = 2_000_000  # maximum characters of a batch of several documents
ROWS = 2_048  # of a product: of fewer, writing the (vocabulary, columns) result takes most of the time
WELL_CONDITIONED = 16  # times as many rows as columns: singular values of random numbers are then 1 +- 1/4
COLUMNS = 128  # columns of the sketch that one thread multiplies at a time
VOCABULARY = 32_000  # maximum tokens; a small corpus has fewer
OVERSAMPLING = 32  # columns of the sketch in addition to the dimensions
TRAINER_CHARACTERS = 50_000_000  # for the tokenizer: at least 25,000 documents
TRAINER_CHARACTERS_PER_DOCUMENT = 2_000
ALPHABET = 4_000  # maximum characters, and at most a quarter of the vocabulary; common Chinese has about 3,000


def fit_static_encoder(
    documents: Callable[[], Iterable[str]], *, dimensions: int, vocabulary: int = VOCABULARY, seed: int = 0
) -> StaticModel:
    """Fit the tokenizer and the token vectors.

    Parameters
    ----------
    documents
        Function that returns a new iterator over the texts; called twice. Memory holds one batch of texts, eight bytes
        for each document and each distinct token in it, at most four matrices of (vocabulary, dimensions + 32) float32,
        and the distinct words of the tokenizer's training text: the first 2,000 characters of each document, at most 50
        million in total.
    dimensions
        Number of values in a vector; if the corpus has a lower rank, the last dimensions are zero.
    vocabulary
        Maximum number of tokens.
    seed
        Seed of the sketch.

    Raises
    ------
    DataError
        If there are fewer than two documents, or no tokens.

    Examples
    --------
    >>> texts = ["piano sonata", "piano melody", "football goal", "football match"] * 5
    >>> model = fit_static_encoder(lambda: texts, vocabulary=300, dimensions=3)
    >>> model.weights.shape == (model.tokenizer.get_vocab_size(), 3)
    True
    >>> words = ("piano", "sonata", "football")
    >>> piano, sonata, football = (model.weights[model.tokenizer.encode(word).ids].mean(0) for word in words)
    >>> bool(piano @ sonata > piano @ football)
    True
    """
    tokenizer = _train_tokenizer(documents(), vocabulary)
    counts = _count_tokens(tokenizer, documents())
    n_documents, size = counts.shape
    document_frequency = np.bincount(counts.indices, minlength=size)
    if n_documents < 2 or not document_frequency.any():
        received = f"{n_documents}{'' if document_frequency.any() else ' without any'}"
        raise DataError(f"the built-in encoder needs at least two documents with words, received {received}")
    idf_squared = (np.log((1.0 + n_documents) / (1.0 + document_frequency)) ** 2).astype(np.float32)
    rank = min(dimensions, n_documents - 1, size - 1)
    with threadpool_limits(1, "blas"):  # equal sums on any number of cores
        test = np.random.default_rng(seed).standard_normal((size, min(rank + OVERSAMPLING, size)), dtype=np.float32)
        if WELL_CONDITIONED * test.shape[1] > size:
            test, _ = scipy.linalg.qr(test, mode="economic", overwrite_a=True, check_finite=False)
        else:  # its columns are nearly orthogonal as they are
            test /= np.float32(size**0.5)
        sketch = _sketch_gram(_tf_idf(counts, idf_squared), test)
        right = _decompose(sketch, test, rank)
    lengths = np.maximum(np.linalg.norm(right, axis=1), np.finfo(np.float32).tiny)
    weights = np.zeros((size, dimensions), dtype=np.float32)
    weights[:, : right.shape[1]] = (idf_squared / np.sqrt(lengths))[:, None] * right
    return StaticModel(tokenizer, weights)


def _train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    # With ignore_merges, a word that is a token is found in the vocabulary without merging its parts.
    tokenizer = Tokenizer(BPE(unk_token="[UNK]", ignore_merges=True))  # noqa: S106 - not a secret
    tokenizer.normalizer = NormalizerSequence([NFKC(), Lowercase()])
    tokenizer.pre_tokenizer = Whitespace()
    trainer = BpeTrainer(vocab_size=vocabulary, min_frequency=2, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(_beginnings(texts, min(ALPHABET, vocabulary // 4)), trainer)
    without_cache(tokenizer)
    tokenizer.encode_special_tokens = True  # its words are parts of special tokens, never a whole one
    return tokenizer


def _beginnings(texts: Iterable[str], most_characters: int) -> Iterator[str]:
    """Yield the beginning of each text until `TRAINER_CHARACTERS` are read.

    The first `most_characters` distinct characters are kept; others are replaced by spaces.
    """
    remaining = TRAINER_CHARACTERS
    alphabet: set[str] = set()
    for text in texts:
        beginning = text[: min(TRAINER_CHARACTERS_PER_DOCUMENT, remaining)]
        remaining -= len(beginning)
        normal = unicodedata.normalize("NFKC", beginning).lower()
        new = sorted(set(normal) - alphabet)
        room = most_characters - len(alphabet)
        alphabet.update(new[:room])
        yield normal.translate(dict.fromkeys(map(ord, new[room:]), " ")) if new[room:] else normal
        if not remaining:
            return


def _count_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> scipy.sparse.csr_matrix:
    """Return the count of each token in each document: float32, (documents, vocabulary)."""
    size = tokenizer.get_vocab_size()
    blocks = [scipy.sparse.csr_matrix((0, size), dtype=np.float32)]
    for batch in in_batches(texts, BATCH_CHARACTERS, BATCH):
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        tokens = [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
        starts = np.cumsum([0, *(len(ids) for ids in tokens)])
        ones = np.ones(starts[-1], dtype=np.float32)
        block = scipy.sparse.csr_matrix((ones, np.concatenate(tokens), starts), shape=(len(batch), size))
        block.sum_duplicates()
        blocks.append(block)
    return scipy.sparse.vstack(blocks, format="csr")


def _tf_idf(
    counts: scipy.sparse.csr_matrix,
    idf_squared: NDArray[np.float32],  # (vocabulary,)
) -> scipy.sparse.csr_matrix:
    """Return the rows (1 + log tf) * idf^2 over the power 3/4 of their length: float32, (documents, vocabulary)."""
    data = (1.0 + np.log(counts.data)) * idf_squared[counts.indices]
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    squares = np.bincount(rows, weights=np.square(data), minlength=counts.shape[0])
    data /= np.maximum(squares**0.375, np.finfo(np.float32).tiny)[rows].astype(np.float32)
    return scipy.sparse.csr_matrix((data, counts.indices, counts.indptr), shape=counts.shape)


def _sketch_gram(
    matrix: scipy.sparse.csr_matrix,  # (documents, vocabulary), A
    test: NDArray[np.float32],  # (vocabulary, columns)
) -> NDArray[np.float32]:  # (vocabulary, columns)
    """Return (A^T A) `test`; each thread computes different columns."""
    parts = [np.ascontiguousarray(test[:, first : first + COLUMNS]) for first in range(0, test.shape[1], COLUMNS)]
    sketch = np.zeros_like(test)

    def add(part: int) -> None:
        for first in range(0, matrix.shape[0], ROWS):
            rows = matrix[first : first + ROWS]
            sketch[:, part * COLUMNS : (part + 1) * COLUMNS] += rows.T @ (rows @ parts[part])

    with ThreadPoolExecutor() as threads:
        list(threads.map(add, range(len(parts))))
    return sketch


def _decompose(
    sketch: NDArray[np.float32],  # (vocabulary, columns), the Gram matrix times `test`
    test: NDArray[np.float32],  # (vocabulary, columns), of about orthonormal columns
    rank: int,
) -> NDArray[np.float32]:  # (vocabulary, rank)
    """Return the leading eigenvectors of the Gram matrix, by descending eigenvalue.

    The Gram matrix is approximated by sketch (test^T sketch)^-1 sketch^T, which is exact if its rank is at most the
    number of columns of `test`. Eigenvectors within the rounding error are left out, so there may be fewer than `rank`.
    """
    core = _product(test.T, sketch).astype(np.float64)
    values, vectors = scipy.linalg.eigh((core + core.T) / 2)
    rounding = np.finfo(np.float32).eps * np.sqrt(len(sketch)) * values[-1]
    kept = values > rounding
    # The Gram matrix is factor @ factor.T.
    factor = _product(sketch, (vectors[:, kept] / np.sqrt(values[kept])).astype(np.float32))
    values, vectors = scipy.linalg.eigh(_product(factor.T, factor).astype(np.float64))
    leading = [index for index in reversed(range(len(values))) if values[index] > rounding][:rank]
    values, vectors = values[leading], vectors[:, leading]
    return _product(factor, (vectors / np.sqrt(values)).astype(np.float32))


def _product(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiply matrices; each thread computes different columns, so that equal inputs give equal bits."""
    product = np.empty((left.shape[0], right.shape[1]), dtype=np.float32)

    def multiply(first: int) -> None:
        product[:, first : first + COLUMNS] = left @ right[:, first : first + COLUMNS]

    with ThreadPoolExecutor() as threads:
        list(threads.map(multiply, range(0, right.shape[1], COLUMNS)))
    return product
