"""`disf`: its gradient against differences of its norm, and on real posts against the published form."""

from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.metrics.disf import Disf
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import central_differences, probabilities, random_masks, unit_rows

POSTS, DIMENSIONS, BUDGET = 2000, 128, 200


def test_disf_gradient_is_that_of_the_norm():
    rows, budget = unit_rows(14, 4), 5
    metric = Disf(rows)
    z = metric.rows.block(slice(None)).double()

    def value(pi):
        return -float((z.T @ (z * pi[:, None]) / (budget - 1)).square().sum().sqrt())

    pi = probabilities(14, budget)
    expected = central_differences(value, pi)
    torch.testing.assert_close(metric.gradient(pi.float()).double(), expected.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("copied", [True, False])
def test_the_trace_is_the_same_for_every_selection(dtype, copied, monkeypatch):
    if not copied:
        monkeypatch.setattr("fineweb_mask.models.selection.rows.COPY_BYTES", {"cpu": 0})
    metric = Disf(unit_rows(40, 6, dtype=dtype))
    for chosen in (metric, metric.restrict(torch.arange(3, 23))):  # the block's standardisation, kept in a batch
        torch.testing.assert_close(chosen.diagonal, torch.full((chosen.rows.n,), 36.0))
        mask = random_masks(chosen.rows.n, 7, 1)[0]
        assert float(chosen.moment(mask).trace()) == pytest.approx(7 * 6, rel=1e-5)


def test_a_focused_metric_is_the_same_among_what_it_looks_at():
    metric, index = Disf(unit_rows(40, 6)), torch.arange(3, 33)
    focused = metric.focused(index)
    masks = torch.zeros((6, 40), dtype=torch.bool)
    masks[:, 3:33] = random_masks(30, 9, 6)
    masks[1] = masks[0]  # nothing changes
    masks[2] = masks[0].clone()
    masks[2, masks[0].nonzero()[0, 0]], masks[2, (~masks[0][3:33]).nonzero()[0, 0] + 3] = False, True  # a swap
    masks[5, masks[5].nonzero()[0, 0]], masks[5, 39] = False, True  # one of the others, too
    torch.testing.assert_close(focused.value(masks), metric.value(masks))
    for mask in masks:
        moment = focused.moment(mask)
        torch.testing.assert_close(moment, metric.moment(mask), rtol=1e-5, atol=1e-5)
        scores, found = metric.scores(moment), focused.scores(moment)
        torch.testing.assert_close(found[index], scores[index])
        others = torch.ones(40, dtype=torch.bool).index_fill(0, index, value=False)
        assert float(found[others].min()) > 10 * float(scores.max())
    weights = probabilities(40, 9).float()
    torch.testing.assert_close(focused.moment(weights), metric.moment(weights))


@pytest.mark.parametrize("grows", [True, False])
def test_gains_go_on_from_a_selection_that_grows_and_start_over_at_another(grows):
    metric, few = Disf(unit_rows(40, 8)), random_masks(40, 3, 1)[0]
    gains = metric.gains(9, 1.0)
    gains.restart(few)
    mask = few | (torch.arange(40) < 3) if grows else ~few & (torch.arange(40) < 6)
    gains.restart(mask)
    moment = metric.moment(mask)
    torch.testing.assert_close(gains.scores, metric.scores(moment), rtol=1e-5, atol=1e-4)
    assert float(gains.v) == pytest.approx(float(moment.square().sum()), rel=1e-5)


def test_a_row_at_the_mean_has_no_direction():
    features = torch.tensor([[1.0, 2.0], [1.0, -2.0], [3.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    metric = Disf(Rows(features))
    torch.testing.assert_close(metric.diagonal, torch.tensor([4.0, 4.0, 4.0, 4.0, 0.0]))
    assert bool((metric.rows.block(slice(4, 5)) == 0).all())


class Posts(NamedTuple):
    rows: Rows
    length: np.ndarray  # characters
    letters: np.ndarray  # share of the characters that are letters or spaces


@pytest.fixture(scope="module")
def posts(real_data):
    texts = pq.read_table(real_data / "newsgroups20.parquet", columns=["text"])["text"].to_pylist()
    texts = list(filter(None, texts))
    texts = texts[:: len(texts) // POSTS][:POSTS]
    words = TfidfVectorizer(min_df=3, max_features=8000, sublinear_tf=True).fit_transform(texts)
    vectors = TruncatedSVD(DIMENSIONS, random_state=0).fit_transform(words)
    known = np.linalg.norm(vectors, axis=1) > 0
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors[known]).float(), dim=1)
    letters = [sum(one.isalpha() or one.isspace() for one in text) / len(text) for text in texts]
    return Posts(Rows(unit), np.array([*map(len, texts)])[known], np.array(letters)[known])


def standardised(x):
    return np.nan_to_num((x - x.mean(0)) / x.std(0))


def disf_by_selection(x):
    """DiSF as its published code evaluates it: standardised by the selected documents (K, d) themselves."""
    z = standardised(x)
    return -np.linalg.norm(z.T @ z) / (len(z) - 1)


def effective_rank(x):
    """exp of the entropy of the eigenvalues of the covariance of documents (K, d)."""
    shares = np.linalg.eigvalsh(np.cov(x.T)).clip(1e-12)
    shares /= shares.sum()
    return np.exp(-(shares * np.log(shares)).sum())


def test_both_forms_of_disf_rank_selections_of_real_posts_alike(posts):
    random, x = np.random.default_rng(0), posts.rows.block(slice(None)).numpy()
    metric, forms = Disf(posts.rows), []
    centrality = np.linalg.norm(standardised(x), axis=1)
    for values in (posts.length, centrality, posts.letters):
        rank = values.argsort().argsort() / len(x)
        for strength in np.linspace(-1, 1, 21):  # from the lowest by uniform subsets to the highest
            chosen = np.argsort(strength * rank + (1 - abs(strength)) * random.random(len(x)))[-BUDGET:]
            mask = torch.zeros(len(x), dtype=torch.bool)
            mask[chosen] = True
            forms.append((float(metric.value(mask[None])[0]), disf_by_selection(x[chosen])))
    assert spearmanr(*np.transpose(forms)).statistic > 0.8


def test_disf_selects_more_directions_than_chance_and_no_longer_posts(posts):
    x, quality = posts.rows.block(slice(None)), np.ones(posts.rows.n, dtype=np.float32)
    chosen = select(x, quality, SelectionSettings(metrics="disf", lamb=0.0, budget=BUDGET)).indices
    drawn = random_masks(len(x), BUDGET, 5)
    ranks = [effective_rank(x[mask].numpy()) for mask in drawn]
    assert effective_rank(x[chosen].numpy()) > 1.1 * max(ranks)
    assert np.median(posts.length) / 1.5 < np.median(posts.length[chosen]) < 1.5 * np.median(posts.length)
