"""Find the nearest documents of every document, for facility location and near-duplicates.

`nearest` is exact. Similarity is symmetric, so every pair of blocks is multiplied once and read from both sides. The
lists are running top-k, so memory is two lists (512 bytes a document for 64 neighbours), a third while they are turned,
and one block of products for any n. What reads the lists does so part by part.

`nearest_in_groups` is approximate. It is an inverted file, as faiss' IVF indexes are: documents are grouped by k-means,
and each is multiplied with the members of the groups nearest to it, here group by group, as matrix products. How near a
group must be follows from the exact neighbours of a random sample, so that the lists hold a chosen share of all
neighbours on any corpus. On vectors without groups that takes as many products as the exact way, which is then taken.
`benchmarks/graph.py` measures it against faiss, hnswlib, usearch and pynndescent.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.selection.k_means import fit_centres
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings.selection import Graph

logger = logging.getLogger(__name__)

PRODUCT_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 30}  # entries of one block of similarities (float32)
SIDE = 512  # its sides are multiples of this: other ones are multiplied and ranked at half the speed
BUNDLE = 8  # columns whose maximum stands for them in a first round of top-k: half the time of one round
LARGE = {"cpu": 32_768, "cuda": 1 << 20}  # most documents for exact lists under `auto`
NARROW = 4  # blocks of up to this * k columns are merged as they are, in one round
RECALL = 0.97  # share of the neighbours that approximate lists are to hold: 0.95 cost 0.7% of J, this 0.1%
TUNED, MEASURED = 256, 256  # documents whose exact neighbours decide how many groups are searched; that measure lists
GROUPS_PER_ROOT = 2  # groups = this * sqrt(n): centres and products then cost about the same at n = 50,000, d = 768
GROUP_SAMPLE = 16  # documents per group that k-means reads
GROUP_MOVES = 3  # moves of the centres
LEAST_PROBES, MOST_PROBES = 2, 128  # groups in which each document's neighbours are sought
WORTH_IT = 0.25  # share of all n^2 products above which the exact lists, with half of them, are faster
BLOCK = 16_384  # documents whose groups are counted at once
PART = {"cpu": 1 << 20, "cuda": 1 << 62}  # places of lists that are read at once
TIE = 1e-6  # float32 rounding of a cosine
EVERYONE = slice(None)


@dataclass(frozen=True)
class Missed:
    """What approximate lists lack, from the exact similarities of a random sample of m documents."""

    documents: Tensor  # (m,) int64
    largest: Tensor  # (m,) float32, similarity to the nearest document outside of the list, at least 0
    recall: float  # share of the sample's k nearest that the lists hold, equally near ones counted alike


@dataclass(frozen=True)
class Neighbours:
    """The k most similar documents of every document, nearest first; each document is its own first neighbour.

    The arrays are rank-major: `index[j]` is one contiguous vector over the documents.
    """

    index: Tensor  # (k, n) int32
    similarity: Tensor  # (k, n) float32, exact cosines, at least 0, descending along k
    missed: Missed | None = None  # None: no document outside of a list is nearer than the last in it

    @property
    def k(self) -> int:
        """Length of the lists."""
        return len(self.index)

    def parts(self) -> Iterator[slice]:
        """Cut the documents into consecutive parts, whose lists are read at once."""
        n, step = self.index.shape[1], max(1, PART[self.index.device.type] // self.k)
        for start in range(0, n, step):
            raise_if_stopped()
            yield slice(start, min(start + step, n))

    def take(self, values: Tensor, part: slice = EVERYONE) -> Tensor:
        """Return the value (n,) of the document at every place of the lists of a part of b documents: (k, b)."""
        index = self.index[:, part]
        return values.index_select(0, index.reshape(-1)).view(index.shape)

    def by_part(self, values: Callable[[slice], Tensor]) -> Tensor:
        """Compute something of every document, (b,) for a part of b: (n,)."""
        return torch.cat([values(part) for part in self.parts()])

    def sum_back(self, values: Callable[[slice], Tensor]) -> Tensor:
        """Sum the values, (k, b) for a part of b, of all list entries that are the same document: (n,) float32.

        Deterministic on both devices: CUDA's index_add is not, so there the sum runs over sorted segments.
        """
        if self.index.device.type == "cpu":
            sums = torch.zeros(self.index.shape[1])
            for part in self.parts():
                sums.index_add_(0, self.index[:, part].reshape(-1), values(part).reshape(-1))
            return sums
        order, lengths = self._segments
        return torch.segment_reduce(values(EVERYONE).reshape(-1)[order], "sum", lengths=lengths)

    @cached_property
    def _segments(self) -> tuple[Tensor, Tensor]:
        flat = self.index.view(-1)
        return torch.argsort(flat, stable=True), torch.bincount(flat, minlength=self.index.shape[1])


def find_neighbours(rows: Rows, k: int, graph: Graph = "auto", recall: float = RECALL, seed: int = 0) -> Neighbours:
    """Find the nearest of each unit row (n, d) exactly, approximately, or as the size suggests (`auto`)."""
    if graph == "exact" or (graph == "auto" and rows.n <= LARGE[rows.device.type]):
        return nearest(rows, k)
    return nearest_in_groups(rows, k, recall, seed)


def nearest(rows: Rows, k: int) -> Neighbours:
    """Find the min(k, n) most similar documents of each unit row (n, d), itself included, by exact blocked products.

    Similarities below 0 count as 0: facility location never uses them.
    """
    n = rows.n
    k = min(k, n)
    similarity, index = _empty_lists(n, k, rows.device)
    everyone = torch.arange(n, dtype=torch.int32, device=rows.device)
    root = int(_elements(rows) ** 0.5)
    side = max(k, min(n, root // SIDE * SIDE or root))
    blocks = list(rows.slices(side))
    for left, right in track("blocks of neighbours", list(combinations_with_replacement(blocks, 2))):
        if right is left:
            own = rows.factor(left)
            products = own.products(own).clamp_(min=0)
            products.fill_diagonal_(2.0)  # a document comes first in its own list, before its duplicates
        else:
            products = rows.factor(left).products(rows.factor(right)).clamp_(min=0)
            similarity[right], index[right] = _merge(similarity[right], index[right], products.T, everyone[left])
        similarity[left], index[left] = _merge(similarity[left], index[left], products, everyone[right])
    similarity = similarity.clamp_(max=1.0).T.contiguous()  # one after the other: the lists are large
    return Neighbours(index.T.contiguous(), similarity)


def nearest_in_groups(rows: Rows, k: int, recall: float = RECALL, seed: int = 0) -> Neighbours:
    """Find about a share `recall` of the min(k, n) most similar documents of each unit row (n, d), itself included.

    Deterministic for a seed. The lists are full and sorted, and their similarities are exact; only some of the nearest
    may be missing in favour of less near ones, as `missed` tells. Exact where exact lists take fewer products. No
    document searches more than `MOST_PROBES` groups: on a large block without groups, `recall` is not reached.
    """
    k = min(k, rows.n)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(rows.n, generator=generator).to(rows.device)
    probes, distance = _probes(rows, generator)
    tuning, measured = shuffled[:TUNED].clone(), shuffled[-MEASURED:].clone()
    del shuffled
    searched = _searched(distance, _farthest(probes, distance, tuning, *_exact_lists(rows, tuning, k), recall))
    del distance
    share = _complete(searched, probes, k) / rows.n**2
    if share > WORTH_IT:
        del probes, searched
        return nearest(rows, k)
    members, searching = _by_group(probes, searched)
    del probes, searched
    lists = _searched_lists(rows, k, members, searching)
    missed = missed_by(rows, lists, measured)
    logger.info(
        "Lists of neighbours are approximate: they hold %.1f%% of the %d nearest of %d sampled documents, "
        "from %.2f%% of all products.",
        *(100 * missed.recall, k, len(missed.documents), 100 * share),
    )
    return replace(lists, missed=missed)


def missed_by(rows: Rows, lists: Neighbours, documents: Tensor) -> Missed:
    """Compare lists with the exact similarities of some documents, (m,) int64."""
    similarity, index = _exact_lists(rows, documents, lists.k + 1)  # at least one of them is not in the list
    held = lists.index[:, documents].T
    outside = torch.stack([~torch.isin(exact, own) for exact, own in zip(index, held, strict=True)])
    kth = similarity[:, lists.k - 1]
    recall = (lists.similarity[:, documents] >= kth - TIE).float().mean()
    return Missed(documents, (similarity * outside).amax(1), float(recall))


def _probes(rows: Rows, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Find the nearest groups of each document, its own first, and how far they are: (n, p) int16, (n, p) float32.

    Groups are those of the centred rows: where all cosines are large, the mean would be close to every document. The
    distance is 1 - (cosine with the centre) / (cosine with the own centre), so that a document between groups probes
    more of them, and rises along the groups.
    """
    n_groups = max(1, min(rows.n, round(GROUPS_PER_ROOT * rows.n**0.5)))
    sample = torch.randperm(rows.n, generator=generator).to(rows.device)[: GROUP_SAMPLE * n_groups]
    mean = (rows.weighted_sum(torch.ones(rows.n, device=rows.device)) / rows.n).float()
    centred = torch.nn.functional.normalize(rows.take(sample).sub_(mean), dim=1)
    centres = fit_centres(Rows(centred), n_groups, GROUP_MOVES, generator)
    del centred, sample
    step = max(1, min(rows.block_rows, _elements(rows) // n_groups))
    offset = mean @ centres.T
    shape = rows.n, min(MOST_PROBES, n_groups)
    group = torch.int16 if n_groups < 1 << 15 else torch.int32
    probes = torch.empty(shape, dtype=group, device=rows.device)
    distance = torch.empty(shape, device=rows.device)
    for part in rows.slices(step):
        cosine, probes[part] = (rows.block(part) @ centres.T).sub_(offset).topk(shape[1], dim=1)
        distance[part] = 1 - cosine / cosine[:, :1].clamp(min=1e-12)
    return probes, distance


def _farthest(
    probes: Tensor,  # (n, p)
    distance: Tensor,  # (n, p)
    documents: Tensor,  # (m,)
    similarity: Tensor,  # (m, k), of the documents' exact neighbours
    index: Tensor,  # (m, k)
    recall: float,
) -> float:
    """Find the distance up to which groups must be searched so that they hold a share of these neighbours."""
    at = probes[index.long(), 0][:, :, None] == probes[documents][:, None]  # (m, k, p)
    needed = torch.where(at, distance[documents][:, None], torch.inf).amin(2)[similarity > 0].sort().values
    return float(needed[int(recall * (len(needed) - 1))])


def _searched(distance: Tensor, farthest: float) -> Tensor:
    """Count the groups up to a distance that each document searches, the first of its (n, p): (n,) int64."""
    near = [(part <= farthest).sum(1) for part in torch.split(distance, BLOCK)]
    return torch.cat(near).clamp_(min=min(LEAST_PROBES, distance.shape[1]))


def _complete(searched: Tensor, probes: Tensor, k: int) -> float:
    """Raise the numbers of groups searched, (n,) in place, so that each document searches at least k others.

    Return the number of products.
    """
    sizes, products = _sizes(probes), 0.0
    for start in range(0, len(probes), BLOCK):
        own = sizes[probes[start : start + BLOCK].long()]
        part = searched[start : start + BLOCK]
        torch.maximum(part, (own.cumsum(1) - own < k).sum(1), out=part)
        products += float(own.cumsum(1).gather(1, part[:, None] - 1).sum(dtype=torch.float64))
    return products


def _sizes(probes: Tensor) -> Tensor:
    """Count the members of each group, from the documents' groups (n, p)."""
    n_groups = max(int(part.max()) for part in torch.split(probes, BLOCK)) + 1
    return torch.bincount(probes[:, 0].long(), minlength=n_groups)


def _by_group(probes: Tensor, searched: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return, for each group, its members and the documents that search it, (m,) int32 each, ascending.

    The documents search the first groups of their (n, p), as many as `searched` (n,) says. They are sorted by group
    block by block, so that no list of 64-bit places of all of them is held.
    """
    sizes, device = _sizes(probes), probes.device
    places = torch.arange(probes.shape[1], device=device)
    blocks = [slice(start, start + BLOCK) for start in range(0, len(probes), BLOCK)]
    counts = torch.zeros_like(sizes)
    for block in blocks:
        counts += torch.bincount(probes[block][places < searched[block, None]].long(), minlength=len(sizes))
    documents = torch.empty(int(counts.sum()), dtype=torch.int32, device=device)
    ends = counts.cumsum(0) - counts
    for block in blocks:
        document, place = (places < searched[block, None]).nonzero().unbind(1)
        group, order = probes[block][document, place].long().sort(stable=True)
        own = torch.bincount(group, minlength=len(sizes))
        into = torch.arange(len(group), device=device) + (ends - (own.cumsum(0) - own))[group]
        documents[into] = (document[order] + block.start).int()
        ends += own
    members = torch.cat([part.int() for part in torch.split(probes[:, 0].sort(stable=True).indices, BLOCK)])
    return torch.split(members, sizes.tolist()), torch.split(documents, counts.tolist())


def _searched_lists(rows: Rows, k: int, members: tuple[Tensor, ...], searching: tuple[Tensor, ...]) -> Neighbours:
    """Find the k nearest of each document in the groups that it searches, from each group's members and searchers."""
    similarity, index = _empty_lists(rows.n, k, rows.device)
    for number in track("groups of neighbours", range(len(members))):
        for candidates in torch.split(members[number], rows.block_rows):
            columns = rows.factor(candidates)
            at_once = max(1, min(rows.block_rows, _elements(rows) // max(1, len(candidates))))
            for part in torch.split(searching[number], at_once) if len(candidates) else ():
                products = rows.factor(part).products(columns).clamp_(min=0)
                products.masked_fill_(part[:, None] == candidates, 2.0)  # a document comes first in its own list
                similarity[part], index[part] = _merge(similarity[part], index[part], products, candidates)
    short = (similarity[:, -1] < 0).nonzero()[:, 0]  # their groups hold fewer than k documents
    for part in torch.split(short, MEASURED):
        similarity[part], index[part] = _exact_lists(rows, part, k)
    similarity = similarity.clamp_(max=1.0).T.contiguous()
    return Neighbours(index.T.contiguous(), similarity)


def _exact_lists(rows: Rows, documents: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the min(k, n) nearest of some documents (m,) among all, each itself first: similarity and index, (m, k)."""
    similarity, index = _empty_lists(len(documents), min(k, rows.n), rows.device)
    queries = rows.take(documents)
    for part in rows.slices():
        candidates = torch.arange(part.start, part.stop, dtype=torch.int32, device=rows.device)
        products = (queries @ rows.block(part).T).clamp_(min=0)
        products.masked_fill_(documents[:, None] == candidates, 2.0)
        similarity, index = _merge(similarity, index, products, candidates)
    return similarity.clamp_(max=1.0), index


def _elements(rows: Rows) -> int:
    return PRODUCT_ELEMENTS[rows.device.type]


def _empty_lists(n: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    # -1 means "none yet": it loses against every similarity, because these are clamped to 0 or more
    return torch.full((n, k), -1.0, device=device), torch.zeros((n, k), dtype=torch.int32, device=device)


def _merge(
    similarity: Tensor,  # (m, k)
    index: Tensor,  # (m, k) int32
    products: Tensor,  # (m, c)
    candidates: Tensor,  # (c,) int32
) -> tuple[Tensor, Tensor]:
    """Merge a block of products into running lists."""
    k = similarity.shape[1]
    if len(candidates) <= NARROW * k:
        best, found = products, candidates.expand(len(products), -1)
    else:
        best, position = _largest(products, k)
        found = candidates[position]
    merged, place = torch.cat([similarity, best], dim=1).topk(k, dim=1)
    return merged, torch.cat([index, found], dim=1).gather(1, place)


def _largest(products: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k largest of each row (m, c) and their columns, (m, k), unsorted columns among equals.

    Bundles of `BUNDLE` columns are ranked by their maximum first: the k largest lie in the k best bundles.
    """
    rows, columns = products.shape
    if columns % BUNDLE or columns < 4 * BUNDLE * k:
        return products.topk(k, dim=1)
    width = columns // BUNDLE
    if products.is_contiguous():
        maxima = products.view(rows, BUNDLE, width).amax(1)
    else:  # a transposed block is reduced in the order of its memory
        maxima = products.T.view(BUNDLE, width, rows).amax(0).T
    bundles = maxima.topk(k, dim=1, sorted=False).indices
    inside = products.view(rows, BUNDLE, width).gather(2, bundles[:, None].expand(-1, BUNDLE, -1)).flatten(1)
    values, place = inside.topk(k, dim=1)
    return values, bundles.gather(1, place % k) + place // k * width
