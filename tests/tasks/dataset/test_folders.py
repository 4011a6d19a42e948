"""Folders: named by values, so that every reader and disk takes them, and no two values share one."""

import re
import unicodedata
from urllib.parse import unquote

from fineweb_mask.tasks.dataset.folders import folder_name
from tests.tasks.conftest import HOSTILE_DUMPS


def test_a_folder_s_name_is_one_plain_part_and_an_ordinary_value_as_it_is():
    for dump in filter(None, HOSTILE_DUMPS):
        name = folder_name(dump)
        assert re.fullmatch(r"[a-z0-9%~-][a-z0-9_.%~A-F-]*(?<!\.)|CC-MAIN-2024-10", name, re.ASCII)
        assert len(name) < 256
        assert name.split(".")[0] not in {"con", "nul"}
    for value in ("CC-MAIN-2024-10", "CC-MAIN-2009-2010", "en", "example.org", "a_b-c~1"):
        assert folder_name(value) == value


def test_folder_names_differ_where_dumps_do_also_where_a_disk_ignores_case():
    dumps = {*filter(None, HOSTILE_DUMPS), "%2E", "%2E.", "..%2Fx", "é" * 50, "é" * 51, "CASE", "%43ase", "%43ON"}
    dumps |= {"Cc-main-2024-10", "CC-MAIN-2024-1O", "_", "__", ".", "..", "X" * 300, "COM1", "com1", "lpt9.a.b", "%"}
    names = {folder_name(dump): dump for dump in dumps}
    assert len({unicodedata.normalize("NFC", name).casefold() for name in names}) == len(dumps)
    assert all(unquote(name) == dump for name, dump in names.items() if len(name) <= 200)
