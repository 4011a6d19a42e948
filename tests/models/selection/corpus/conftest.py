"""A corpus in parts that differ: each has its own mixture of clusters and its own mean quality."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection.corpus.documents import Documents, sampled
from fineweb_mask.models.selection.corpus.sample import CorpusStatistics, SampleProblem
from fineweb_mask.models.settings.selection import NearDuplicateSettings, SelectionSettings

CPU = torch.device("cpu")


def part(number, n, d=8, tokens=False):
    random = np.random.default_rng(number + 1)
    centres = np.random.default_rng(0).normal(size=(8, d))
    cluster = random.choice(8, n, p=random.dirichlet(np.full(8, 0.3)))
    vectors = centres[cluster] + random.normal(size=(n, d))
    quality = random.normal(size=n) + 0.7 * random.normal() + np.linspace(-1, 1, 8)[cluster]
    counts = random.integers(20, 2000, n) if tokens else None
    return Documents(vectors.astype(np.float16), quality.astype(np.float32), random.random(n), counts)


@pytest.fixture(scope="session")
def parts():
    return [part(number, n) for number, n in enumerate((900, 300, 1500, 700))]


@pytest.fixture(scope="session")
def parts_with_tokens():
    return [part(number, n, tokens=True) for number, n in enumerate((900, 300, 1500, 700))]


def settings_of(**changes):
    """Settings without a charge for near-duplicates, unless it is among the changes."""
    return SelectionSettings(**{"metrics": "pairwise", "near_duplicates": NearDuplicateSettings(weight=0)} | changes)


def problem_of(parts, settings, *, rate=1.0, directions=128, **options):
    """The problem of a sample of all parts' documents."""
    survey = CorpusStatistics.total([CorpusStatistics.of(one, CPU) for one in parts])
    sample = Documents.concatenate([sampled(one, rate) for one in parts])
    return SampleProblem(sample, survey, settings, directions, CPU, **options)
