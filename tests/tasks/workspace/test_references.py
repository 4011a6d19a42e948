"""Digests and keys are stable and depend on all of their parts."""

import hashlib
from dataclasses import replace
from typing import Any

from fineweb_mask.tasks.workspace.references import StageFile, digest
from tests.tasks.stage_files import KEY


def test_digest_is_stable_and_canonical():
    canonical = rb'{"a":"\u00e9","b":[1,2.5,null]}'
    assert digest({"b": [1, 2.5, None], "a": "é"}) == hashlib.sha256(canonical).hexdigest()[:32]
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest(["1"]) != digest([1])
    file = StageFile(stage="s", name="a", path="p", rows=1, bytes=1, fingerprint="f", details={"n": 1})
    assert digest({"a": [("name", file)]}) == digest({"a": [["name", "f"]]})


def test_a_key_s_fingerprint_depends_on_every_part():
    changes: list[dict[str, Any]] = [{}, {"stage": "t"}, {"version": 2}, {"settings": "t"}, {"inputs": "t"}]
    keys = [replace(KEY, **change) for change in changes]
    assert len({key.fingerprint for key in keys}) == len(keys)
