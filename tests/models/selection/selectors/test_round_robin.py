"""Rankings that take documents in turn, by a budget of documents and of tokens."""

import numpy as np
import pytest

from fineweb_mask.models.selection import SelectorInputs


@pytest.mark.parametrize("by_tokens", [False, True])
def test_each_ranking_takes_its_best_document_that_is_left(by_tokens, selected):
    scores = {"a": np.array([5.0, 4, 3, 2, 1, 0]), "b": np.array([0.0, 5, 1, 2, 3, 4])}
    tokens = np.array([10, 10, 30, 10, 10, 10]) if by_tokens else None
    settings = {"budget": 40, "budget_by": "tokens"} if by_tokens else {"budget": 4}
    also = SelectorInputs(scores=scores)
    found = selected("odis", np.eye(6), np.zeros(6), also=also, tokens=tokens, constants={"variance": 1.0}, **settings)
    first = found.indices[np.argsort(-found.inclusion[found.indices])]
    assert len(first) == 4
    if by_tokens:
        assert tokens[first].sum() == 40
