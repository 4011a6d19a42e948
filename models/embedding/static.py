"""The built-in encoder: static token vectors fitted on the corpus itself, so that no model need be downloaded.

Latent semantic analysis (Deerwester et al., 1990) put into the form of a sentence-transformers `StaticEmbedding`: a
document's vector is the mean of its tokens' vectors, and with V the right singular vectors of the tf-idf matrix,
a token t gets idf_t^2 * V_t. The vectors are not centred: the mean cosine, by which a selection's redundancy is
measured, needs an origin that means "nothing in common".

Equal texts in equal order give equal weights.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFKC, Lowercase
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer

BATCH = 512  # documents tokenised at a time


class StaticEncoder(NamedTuple):
    """A tokenizer and one vector per token."""

    tokenizer: Tokenizer
    weights: NDArray[np.float32]  # (vocabulary, dimensions)

    def as_sentence_transformer(self) -> SentenceTransformer:
        """Return the encoder as a sentence-transformers model, ready to be saved as a folder of safetensors."""
        return SentenceTransformer(
            modules=[StaticEmbedding(self.tokenizer, embedding_weights=self.weights)], device="cpu"
        )


def fit_static_encoder(
    documents: Callable[[], Iterable[str]], *, vocabulary: int, dimensions: int, seed: int = 0
) -> StaticEncoder:
    """Fit the tokenizer and the token vectors.

    Parameters
    ----------
    documents
        Gives a fresh pass over the texts; two passes are made, and only token counts are held.
    vocabulary
        Largest number of tokens.
    dimensions
        Length of a vector; where the corpus has a lower rank, the last dimensions are zero.
    seed
        Seed of the randomised decomposition.

    Raises
    ------
    ValueError
        If there are fewer than two documents or two tokens to learn from.
    """
    tokenizer = _train_tokenizer(documents(), vocabulary)
    counts = _count_tokens(tokenizer, documents())  # (documents, vocabulary)
    if min(counts.shape) < 2 or counts.nnz == 0:
        raise ValueError(f"the built-in encoder needs at least two documents, received {counts.shape[0]}")
    document_frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = np.log((1.0 + counts.shape[0]) / (1.0 + document_frequency)).astype(np.float32)
    idf_squared = idf * idf

    counts.data = 1.0 + np.log(counts.data)
    tf_idf = normalize(counts.multiply(idf_squared[None, :]).tocsr())
    rank = min(dimensions, *(size - 1 for size in tf_idf.shape))
    with threadpool_limits(1, "blas"):  # the same sums on any machine; faster too, where cores are shared
        _, _, right = randomized_svd(
            tf_idf, rank, n_oversamples=32, n_iter=1, power_iteration_normalizer="QR", random_state=seed
        )
    weights = np.zeros((counts.shape[1], dimensions), dtype=np.float32)
    weights[:, :rank] = idf_squared[:, None] * right.T
    return StaticEncoder(tokenizer, weights)


def _train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(BPE(unk_token="[UNK]"))  # noqa: S106 - a token of text, not a secret
    tokenizer.normalizer = NormalizerSequence([NFKC(), Lowercase()])
    tokenizer.pre_tokenizer = Whitespace()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        limit_alphabet=1_000,
        special_tokens=["[PAD]", "[UNK]"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _count_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> scipy.sparse.csr_matrix:
    """Return how often each token occurs in each document: float32, (documents, vocabulary)."""
    size = tokenizer.get_vocab_size()
    rows = []
    remaining = iter(texts)
    while batch := list(islice(remaining, BATCH)):
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        tokens = [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
        starts = np.cumsum([0, *(len(ids) for ids in tokens)])
        ones = np.ones(starts[-1], dtype=np.float32)
        block = scipy.sparse.csr_matrix((ones, np.concatenate(tokens), starts), shape=(len(batch), size))
        block.sum_duplicates()
        rows.append(block)
    if not rows:
        return scipy.sparse.csr_matrix((0, size), dtype=np.float32)
    return scipy.sparse.vstack(rows, format="csr")
