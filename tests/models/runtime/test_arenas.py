"""The limit is one that glibc knows."""

import platform

import pytest

from fineweb_mask.models.runtime.arenas import limit_arenas


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limit is one of glibc")
def test_glibc_takes_the_limit():
    assert limit_arenas()


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert not limit_arenas()
