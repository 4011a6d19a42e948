"""BETR and RDS+ against their definitions."""

import numpy as np
import pytest

from fineweb_mask.models.selection.inputs import SelectionInputError, SelectorInputs, Targets


def targets(vectors, tasks):
    return SelectorInputs(targets=Targets(np.asarray(vectors, dtype=float), np.asarray(tasks)))


def unit(random, *shape):
    rows = random.normal(size=shape)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def documents():
    return unit(np.random.default_rng(3), 40, 6)


def test_betr_scores_are_the_best_of_minus_log_ranks(documents, selected):
    examples = unit(np.random.default_rng(4), 6, 6)
    found = selected("betr", documents, np.zeros(40), budget=5, also=targets(examples, [0] * 3 + [1] * 3))
    ranks = 1 + np.argsort(np.argsort(-examples @ documents.T, axis=1), axis=1)
    expected = -np.log(ranks.min(0))
    np.testing.assert_allclose(found.inclusion, expected, rtol=1e-5, atol=1e-6)
    assert set(found.indices) == set(np.argsort(-expected, kind="stable")[:5])


def test_every_task_has_as_many_examples(documents, selected):
    examples = documents[[3, 5, 8, 9]]
    found = selected("betr", documents, np.zeros(40), budget=2, also=targets(examples, [0, 0, 0, 1]))
    assert set(found.indices) == {3, 9}  # the first of task 0, and that of task 1


@pytest.mark.parametrize("candidates", [1 << 28, 27])
@pytest.mark.parametrize("tasks", [[0, 0, 0], [0, 1, 2, 2]], ids=["one task", "three tasks"])
def test_rds_takes_for_the_examples_of_a_task_or_for_the_tasks_in_turn(
    tasks, candidates, documents, selected, monkeypatch
):
    monkeypatch.setattr("fineweb_mask.models.selection.selectors.targets.CANDIDATES", candidates)
    examples = unit(np.random.default_rng(5), len(tasks), 6)
    found = selected("rds", documents, np.zeros(40), budget=9, also=targets(examples, tasks))
    of_turn = tasks if len(set(tasks)) > 1 else range(len(tasks))
    nearness = np.stack([(documents @ examples[np.array(of_turn) == turn].T).max(1) for turn in sorted(set(of_turn))])
    taken = []
    for turn in range(9):  # by the definition, one document at a time, whatever the scales of the tasks
        order = np.argsort(-nearness[turn % len(nearness)])
        taken.append(next(document for document in order if document not in taken))
    assert set(found.indices) == set(taken)
    ranked = np.argsort(-found.inclusion)
    assert ranked[:9].tolist() == taken
    assert len(set(tasks)) > 1 or (np.diff(nearness.max(0)[ranked[9:]]) <= 1e-6).all()


def test_targets_of_another_encoder_are_refused(documents, selected):
    with pytest.raises(SelectionInputError, match=r"targets must be vectors \(examples, 6\).*embed them"):
        selected("rds", documents, np.zeros(40), also=targets(np.ones((2, 5)), [0, 1]))
