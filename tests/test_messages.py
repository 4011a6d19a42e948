"""Every message of our own errors says what was received, and what is required or what to do.

The messages are read from the source: each place that makes an error of a class that derives from `FinewebMaskError`.
"""

import ast
import inspect
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from fineweb_mask.models import errors

ROOT = Path(__file__).parents[1]
FLOORS = ("models", "tasks", "flows")
REQUIRED = re.compile(
    r"\b(must|takes?|needs?|needed|may be|may hold|at least|at most|exactly|allowed|can only|it has|they have|"
    r"there are|as in|such as|lists them)\b"
)
REMEDY = re.compile(
    r"(^|[:;,.(] |\band |\bor |\bfirst )(add|allow|ask|budget|check|choose|close|convert|copy|correct|download|drop|"
    r"first|free|give|install|leave|log in|lower|move|name|pass|pip install|please report|put|raise|rename|run|save|"
    r"score|set|train|try|unpack|unset|use|wait|write)\b",
    re.IGNORECASE,
)
PASSED_ON = re.compile(r"error|STOPPED|ENDED|answer|reason|remedy|TEXT_IS_NO_GROUP|LEAVE_OUT|problem|NO_[FL]")
"""Expressions that are a message, or its last words: of another error or process, or chosen among several."""

NOT_THE_MESSAGE = ("errno", "getattr(error, 'errno'", "path", "str(path)", "str(workspace")
"""First arguments of errors whose last one is the message."""


class Message(NamedTuple):
    """A message, with `{...}` instead of what is filled in."""

    place: str
    text: str
    filled: tuple[str, ...]  # expressions


def sources():
    return sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


def text_of(node):
    """Return a text with the expressions that are filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value), ()
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(value) for value in node.values]
        return "".join(text for text, _ in parts), tuple(name for _, names in parts for name in names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        (left, first), (right, second) = text_of(node.left), text_of(node.right)
        return left + right, first + second
    if isinstance(node, ast.IfExp):
        (left, first), (right, second) = text_of(node.body), text_of(node.orelse)
        return f"{left} {right}", first + second
    value = node.value if isinstance(node, ast.FormattedValue) else node
    return "{...}", (ast.unparse(value),)


@pytest.fixture(scope="module")
def found():
    walked = ((path.relative_to(ROOT), node) for path in sources() for node in ast.walk(ast.parse(path.read_text())))
    nodes = [(path, node) for path, node in walked if isinstance(node, ast.ClassDef | ast.Call)]
    ours = {name for name, one in vars(errors).items() if inspect.isclass(one)}
    for _ in range(5):  # derived from those that derive
        for node in (node for _, node in nodes if isinstance(node, ast.ClassDef)):
            if ours & {base.id for base in node.bases if isinstance(base, ast.Name)}:
                ours.add(node.name)
    made = []
    for path, node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ours and node.args:
            argument = node.args[-1] if ast.unparse(node.args[0]).startswith(NOT_THE_MESSAGE) else node.args[0]
            made.append(Message(f"{path}:{node.lineno}", *text_of(argument)))
    assert len(made) > 200
    assert len(ours) > 35
    return made


def places(messages):
    return [f"{message.place}: {message.text}" for message in messages]


def test_each_says_what_is_required_or_what_to_do(found):
    silent = [message for message in found if not REQUIRED.search(message.text) and not REMEDY.search(message.text)]
    assert places(one for one in silent if not any(PASSED_ON.search(expression) for expression in one.filled)) == []


def test_each_says_what_was_received_or_only_one_thing_can_be_wrong(found):
    assert places(one for one in found if not one.filled and not REMEDY.search(one.text)) == []


def test_none_is_another_s_name_alone(found):
    """An error whose text is a key or a number says nothing by itself."""
    assert places(one for one in found if one.text == "{...}" and not PASSED_ON.search(one.filled[0])) == []


def test_none_ends_like_a_sentence_or_begins_like_one(found):
    """A message follows 'fineweb-mask: ' and may be followed by more."""
    like_one = re.compile(r"(The|A|An|It|There|This) ")
    assert places(one for one in found if one.text.endswith((".", "!", ":", ",")) or like_one.match(one.text)) == []
