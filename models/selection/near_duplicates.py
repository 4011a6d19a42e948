"""Leave out near-duplicates before a selection: of documents that are alike only the best may be selected (ours).

Documents are taken in the order of their quality, each unless one that was taken is alike. Pairs are read off lists of
neighbours. Where a list holds nothing else, its document may have more of them: if it is still there, it is compared
with all that are.
"""

import torch
from torch import Tensor

from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.rows import Rows

AT_ONCE = 4096  # documents of either side of one block of cosines


def without_near_duplicates(rows: Rows, quality: Tensor, threshold: float, lists: Neighbours) -> Tensor:
    """Return which documents remain, (n,) bool: no two with a cosine of at least `threshold`.

    Parameters
    ----------
    rows, quality
        (n, d) unit rows and (n,).
    threshold
        Cosine from which two documents are near-duplicates.
    lists
        The neighbours of every document.
    """
    order = quality.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    places, documents = (lists.similarity[1:] >= threshold).nonzero().unbind(1)
    remains = _independent(documents, lists.index[1:][places, documents].long(), rank)
    has_more = (remains & (lists.similarity[-1] >= threshold)).nonzero()[:, 0]
    if lists.k == rows.n or not len(has_more):
        return remains
    return remains & _independent(*_alike(rows, has_more, remains.nonzero()[:, 0], threshold), rank)


def _alike(rows: Rows, some: Tensor, among: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the pairs of documents of an index (b,) and others of `among` (c,) that are alike, (e,) each."""
    first, second = [], []
    for part in torch.split(some, AT_ONCE):
        for others in torch.split(among, AT_ONCE):
            places = (rows.products(part, others) >= threshold).nonzero()
            first.append(part[places[:, 0]])
            second.append(others[places[:, 1]])
    one, other = torch.cat(first), torch.cat(second)
    return one[one != other], other[one != other]


def _independent(first: Tensor, second: Tensor, rank: Tensor) -> Tensor:
    """Take documents in the order of their rank (n,), each unless it makes a pair with one that was taken: (n,) bool.

    In every round all documents are taken at once that rank before all others of their pairs. `first` and `second`
    (e,) are the pairs, in either order.
    """
    first, second = torch.cat([first, second]), torch.cat([second, first])
    open_, taken = torch.ones_like(rank, dtype=torch.bool), torch.zeros_like(rank, dtype=torch.bool)
    while len(first):
        rival = torch.full_like(rank, int(rank.max()) + 1).scatter_reduce_(0, first, rank[second], "amin")
        chosen = open_ & (rank < rival)
        taken |= chosen
        open_ &= ~chosen
        open_[second[chosen[first]]] = False
        live = open_[first] & open_[second]
        first, second = first[live], second[live]
    return taken | open_
