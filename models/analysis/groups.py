"""How documents fall into groups: deciles of a number, bins of a histogram, domains of a url."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

HOST = r"^[A-Za-z][A-Za-z0-9+.\-]*:[/\\]{2}(?:[^/?#\\]*@)?(?:[Ww][Ww][Ww]\.)?(?P<host>\[[^\]/?#]*\]|[^/?#\\:@\s]+)"
LONGEST_HOST = 253  # of a domain name (RFC 1035)


def domains(urls: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the host of every url without a leading "www.", in lower case; null where there is none."""
    urls = urls.combine_chunks() if isinstance(urls, pa.ChunkedArray) else urls
    hosts = pc.struct_field(pc.extract_regex(urls, pattern=HOST), "host")
    hosts = pc.utf8_slice_codeunits(pc.utf8_rtrim(pc.utf8_lower(hosts), "."), 0, LONGEST_HOST)
    return pc.if_else(pc.equal(pc.fill_null(hosts, ""), ""), pa.scalar(None, pa.string()), hosts)


def decile_edges(values: NDArray[np.floating[Any]], groups: int = 10) -> NDArray[np.float64]:
    """Return what bounds groups of equal size, (2 to groups + 1,) ascending; none without values. NaN is left out.

    Edges that are equal are one, so values that repeat much make fewer groups; if all are equal, they make one.
    Of whole numbers the edges are whole.
    """
    present = values[np.isfinite(values)]
    if not len(present):
        return np.empty(0)
    edges = np.quantile(present, np.linspace(0, 1, groups + 1))
    if (present == np.floor(present)).all():
        edges = np.ceil(edges)  # a whole number reaches an edge if it reaches the next whole number
    edges = np.unique(edges)
    return edges if len(edges) > 1 else np.repeat(edges, 2)


def group_of(values: NDArray[np.floating[Any]], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the group of every value, (n,): 0 to len(edges) - 2, the first and last also for what lies outside.

    A group holds its lower edge, the last one its upper, too. NaN is in group -1; so is everything without edges.
    """
    if not len(edges):
        return np.full(len(values), -1)
    inner = edges[1:-1]
    return np.where(np.isnan(values), -1, np.searchsorted(inner, values, side="right"))


def counts_of(groups: NDArray[np.integer[Any]], n_groups: int) -> NDArray[np.int64]:
    """Return how many values are in each group, (n_groups,); those in group -1 are not counted."""
    return np.bincount(groups[groups >= 0], minlength=n_groups)
