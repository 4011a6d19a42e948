"""A selection with documents of another kind predicts held-out documents of that kind better."""

import numpy as np

from fineweb_mask.models.ledger.price import Documents, join
from fineweb_mask.models.ledger.teaching import Teaching
from fineweb_mask.models.settings.selection import SelectionSettings

WORDS = {
    "sea": "harbour tide sail anchor wave reef gull mast cargo storm".split(),
    "space": "orbit comet lens rocket crater launch probe solar dust star".split(),
}


def texts_of(topic: str, n: int, seed: int) -> list[str]:
    dice = np.random.default_rng(seed)
    return [" ".join(f"{dice.choice(WORDS[topic])} {dice.integers(50)}" for _ in range(60)) for _ in range(n)]


def documents(axis: int, n: int, seed: int) -> Documents:
    dice = np.random.default_rng(seed)
    vectors = dice.normal(size=(n, 16)).astype(np.float32)
    vectors[:, axis] += 2
    return Documents(
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dice.random(n, np.float32), np.full(n, 120)
    )


def test_what_theirs_teach_is_seen_on_theirs() -> None:
    ours, theirs = documents(0, 300, 0), documents(1, 300, 1)
    teaching = Teaching(ours, theirs, [*texts_of("sea", 300, 0), *texts_of("space", 300, 1)], threshold=0.99)
    assert teaching.can_tell(0.9)
    assert not teaching.can_tell(0.001)
    joined = join(ours, theirs, SelectionSettings(metrics="pairwise", select_ratio=0.5))
    of_ours, of_theirs = teaching.measure(joined, np.arange(300), np.arange(300))
    assert of_theirs[0] > 10 * of_theirs[1] > 0
    assert of_ours[0] < of_theirs[0] / 4
