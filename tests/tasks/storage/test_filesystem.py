"""File systems are opened by URL."""

import pytest

from fineweb_mask.tasks.storage.errors import RemoteError
from fineweb_mask.tasks.storage.object_store import Store


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(RemoteError, match=r"^abc://x: Protocol not known: abc"):
        Store("abc://x")
