"""Pages: one HTML file without outside resources, safe against any text from the web, and its files."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from fineweb_mask.tasks.reporting.page import Card, Column, Figure, Page, PageJob, Section, Side, Table, Tile
from fineweb_mask.tasks.workspace.job import Dependencies, Stage
from fineweb_mask.tasks.workspace.references import StageFile

HOSTILE = "<script>a(1)</script><img src=x onerror=a(1)> [l](javascript:x) | `c` \x1b[31mred\x00 \u202egnp \"'&🎉"
SHOWN = "<script>a(1)</script><img src=x onerror=a(1)> [l](javascript:x) | `c` ␛[31mred␀ �gnp \"'&🎉"
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


class Parsed(HTMLParser):
    """Collects the tags, what they load, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words += data


def hostile_page(figure="quality"):
    table = Table(HOSTILE, [Column(HOSTILE), Column("n", "count")], [[HOSTILE, 1200], ["b", None]], note=HOSTILE)
    return Page(
        HOSTILE,
        HOSTILE,
        [Tile(HOSTILE, HOSTILE)],
        [
            Section("A & b!", [HOSTILE], [Figure(figure, PNG, table, HOSTILE, HOSTILE)], [table]),
            Section("Side by side", sides=[Side(HOSTILE, [Card(HOSTILE, HOSTILE, HOSTILE)])]),
        ],
        HOSTILE,
        {"name": HOSTILE},
    )


def test_hostile_text_is_shown_as_text():
    parsed = Parsed(hostile_page().html())
    assert parsed.words.count(SHOWN) == 20
    assert [tag for tag, _ in parsed.tags].count("script") == 1  # the page's own
    assert [attributes["src"][:22] for tag, attributes in parsed.tags if tag == "img"] == ["data:image/png;base64,"]
    assert not {"iframe", "object", "embed", "base", "form"} & {tag for tag, _ in parsed.tags}
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    [alt] = [attributes["alt"] for tag, attributes in parsed.tags if tag == "img"]
    assert alt == SHOWN


def test_the_policy_lets_in_the_pages_own_script_and_style_and_nothing_else():
    text = hostile_page().html()
    [policy] = [
        attributes["content"] or ""
        for tag, attributes in Parsed(text).tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy
    assert not re.search(r"unsafe|\*|https?:", policy)
    for tag in ("script", "style"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"url\s*\(|@import|https?://", text)


def test_the_markdown_holds_no_markup_but_its_own():
    text = hostile_page().markdown()
    plain = re.sub(r"\\[!-/:-@\[-`{-~]", "", text)  # without what is escaped
    assert not re.search(r"[<>\x00\x1b\u202e`]", plain)
    assert re.findall(r"\]\((.*?)\)", plain) == ["plots/quality.png"]
    assert re.findall(r"^\|.*\| 1,200 \|$", plain, re.MULTILINE)
    assert "| b | – |" in text  # noqa: RUF001 - an en dash
    assert all(len(re.findall(r"\|", line)) == 3 for line in plain.splitlines() if line.startswith("|"))


def test_a_long_table_is_cut_in_the_markdown_only():
    rows = [[f"row{index}", index] for index in range(120)]
    table = Table("Long", [Column("name"), Column("n", "count")], rows)
    page = Page("t", "l", [], [Section("s", tables=[table])], "f")
    assert page.html().count("<td") == 240
    assert page.markdown().count("| row") == 50
    assert "The first 50 of 120 rows." in page.markdown()


def test_a_column_of_bars_has_one_beside_each_number():
    rows = [["a", 5, 0.5], ["b", 20, None], ["c", 0, 0.0]]
    table = Table("t", [Column("name"), Column("n", "count", has_bars=True), Column("s", "share", has_bars=True)], rows)
    tags = Parsed(Page("t", "l", [], [Section("s", tables=[table])], "f").html()).tags
    bars = [(attributes["value"], attributes["max"]) for tag, attributes in tags if tag == "progress"]
    assert bars == [("5", "20"), ("0.5", "0.5"), ("20", "20"), ("0", "20"), ("0.0", "0.5")]


class Job(PageJob):
    stage = Stage("report", version=1, folders=("reports",))

    inputs: str = "one"

    def depends_on(self):
        return Dependencies(settings=[], inputs=self.inputs)


def test_what_is_written_is_whole_and_of_its_key(tmp_path):
    job = Job(root=str(tmp_path))
    assert job.current() is None
    job.write(hostile_page("old"))
    job.write(hostile_page(), {"rows": 3})
    file = job.current()
    assert isinstance(file, StageFile)
    assert (file.stage, file.path, file.rows) == ("report", "reports/manifest.json", 3)
    names = sorted(path.relative_to(job.folder).as_posix() for path in job.folder.rglob("*") if path.is_file())
    assert names == ["index.html", "index.md", "manifest.json", "metrics.json", "plots/quality.png"]
    assert json.loads((job.folder / "metrics.json").read_text()) == {"name": HOSTILE}
    assert job.model_copy(update={"inputs": "other"}).current() is None
    (job.folder / "plots" / "quality.png").unlink()
    assert job.current() is None


def test_a_number_that_is_not_finite_is_refused(tmp_path):
    page = Page("t", "l", [], [], "f", {"x": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        Job(root=str(tmp_path)).write(page)
    assert not list(tmp_path.iterdir())
