"""Leave out near-duplicates before a selection: of documents that are alike only the best may be selected (ours).

Documents are taken in the order of their quality, each unless one that was taken is alike. Pairs are read off lists of
neighbours. Where a list holds nothing else, its document may have more of them: those that remain are looked at again.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.rows import Rows


def without_near_duplicates(
    rows: Rows, quality: Tensor, threshold: float, lists: Neighbours, find: Callable[[Rows, int], Neighbours]
) -> Tensor:
    """Return which documents remain, (n,) bool: no two with a cosine of at least `threshold`.

    Parameters
    ----------
    rows, quality
        (n, d) unit rows and (n,).
    threshold
        Cosine from which two documents are near-duplicates.
    lists
        The neighbours of every document.
    find
        Finds such lists of other rows, of a length.
    """
    order = quality.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    kept = torch.arange(rows.n, device=rows.device)
    while True:
        places, documents = (lists.similarity[1:] >= threshold).nonzero().unbind(1)
        others = lists.index[1:][places, documents].long()
        remains = _independent(documents, others, rank[kept])
        is_complete = lists.k >= len(kept) or not bool((remains & (lists.similarity[-1] >= threshold)).any())
        kept = kept[remains]
        if is_complete:
            break
        lists = find(rows.only(kept), lists.k)
    mask = torch.zeros(rows.n, dtype=torch.bool, device=rows.device)
    mask[kept] = True
    return mask


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
