"""The tiny workspace of the tests of `tasks/`."""

from tests.tasks.conftest import built, corpus, labels, recipe, scorer  # noqa: F401 - fixtures
