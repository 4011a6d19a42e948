"""A receipt is read as it was written, and nothing else is taken for one."""

import json

import pytest

from fineweb_mask.tasks.dataset.verify import VerifyError
from fineweb_mask.tasks.ledger.receipt import Receipt, compared, free_name
from fineweb_mask.tasks.workspace.workspace import Workspace

RECEIPT = Receipt(
    asked={"url": 3},
    asked_digest="d",
    found=2,
    documents=2,
    copies=0,
    twins=0,
    twins_left=None,
    selected=1,
    texts=["00" * 16, "ff" * 16],
    rows={"before": 9, "after": 9},
    files={"documents/a.parquet": ("1", None)},
    dataset={},
    started="now",
)


def test_it_is_read_as_it_was_written_and_knows_the_texts(tmp_path):
    RECEIPT.write(tmp_path / "receipt.json")
    found = Receipt.read(str(tmp_path / "receipt.json"))
    assert found == RECEIPT
    assert found.unwanted("123", [None] * 3, [b"\xff" * 16, bytes(16), b"\xff" * 15 + b"\0"]).tolist() == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no receipt"),
        ("[]", "is no receipt"),
        ('{"documents": 1}', "is no receipt"),
        ("changed", "was changed since it was written"),
    ],
)
def test_what_is_none_or_was_changed_is_refused(tmp_path, content, reason):
    path = tmp_path / "receipt.json"
    if content == "changed":
        RECEIPT.write(path)
        content = json.dumps(json.loads(path.read_text()) | {"documents": 1})
    if content is not None:
        path.write_text(content)
    with pytest.raises(VerifyError, match=reason):
        Receipt.read(str(path))


def test_a_second_receipt_of_a_day_has_a_name_of_its_own(tmp_path):
    workspace, names = Workspace(tmp_path), []
    for _ in range(3):
        names.append(free_name(workspace))
        RECEIPT.write(tmp_path / names[-1])
    assert len(set(names)) == 3
    assert [name.removesuffix(".json")[-2:] for name in names[1:]] == ["-2", "-3"]


def test_files_are_compared_by_name():
    before, after = {"a": "1", "b": "2"}, {"b": "2", "c": "3"}
    assert compared(before, after) == {"a": ("1", None), "b": ("2", "2"), "c": (None, "3")}
    assert compared(before, after, all_of_them=False) == {"a": ("1", None), "c": (None, "3")}
