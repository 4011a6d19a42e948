"""Shares of the shards, as text."""

import pytest

from fineweb_mask.flows.pipeline.run import Share


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/0", "-1/3", "1/2/3", "a/b", "1.0/2"])
def test_a_wrong_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a share is I/N, such as 2/8"):
        Share.parse(text)
