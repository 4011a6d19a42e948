"""Group documents by deciles of a number, bins of a histogram or domains of a URL."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

HOST = r"^[A-Za-z][A-Za-z0-9+.\-]*:[/\\]{2}(?:[^/?#\\]*@)?(?:[Ww][Ww][Ww]\.)?(?P<host>\[[^\]/?#]*\]|[^/?#\\:@\s]+)"
LONGEST_HOST = 253  # characters of a domain name (RFC 1035)


def domains(urls: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the host of each URL in lower case, without a leading "www."; null for a text without a host."""
    urls = urls.combine_chunks() if isinstance(urls, pa.ChunkedArray) else urls
    hosts = pc.struct_field(pc.extract_regex(urls, pattern=HOST), "host")
    hosts = pc.utf8_slice_codeunits(pc.utf8_rtrim(pc.utf8_lower(hosts), "."), 0, LONGEST_HOST)
    return pc.if_else(pc.equal(pc.fill_null(hosts, ""), ""), pa.scalar(None, pa.string()), hosts)


def decile_edges(values: NDArray[np.floating[Any]], groups: int = 10) -> NDArray[np.float64]:
    """Return the edges of groups of equal size, (2 to groups + 1,) ascending.

    Equal edges are merged, so values with many repetitions make fewer groups, and equal values make one group. Whole
    numbers have whole edges. Only finite values count; without any, the result is empty.
    """
    present = values[np.isfinite(values)]
    if not len(present):
        return np.empty(0)
    edges = np.quantile(present, np.linspace(0, 1, groups + 1))
    if (present == np.floor(present)).all():
        edges = np.ceil(edges)  # a whole number is above an edge exactly if it is above the edge rounded up
    edges = np.unique(edges)
    return edges if len(edges) > 1 else np.repeat(edges, 2)


def group_of(values: NDArray[np.floating[Any]], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the group of each value, (n,): 0 to len(edges) - 2; -1 for NaN, and for all values without edges.

    A group includes its lower edge; the last group also its upper edge. Values outside the edges are in the first or
    the last group.
    """
    if not len(edges):
        return np.full(len(values), -1)
    inner = edges[1:-1]
    return np.where(np.isnan(values), -1, np.searchsorted(inner, values, side="right"))


def counts_of(groups: NDArray[np.integer[Any]], n_groups: int) -> NDArray[np.int64]:
    """Return the number of values in each group, (n_groups,), without group -1."""
    return np.bincount(groups[groups >= 0], minlength=n_groups)
