"""Extract the main text of a web page, without its menus, comments and markup, by trafilatura.

As FineWeb does (arXiv 2406.17557, section 3.2), with one difference: `deduplicate` is off. With it a paragraph is left
out if other pages had it before, so that a text would depend on the pages that happened to come before it in the same
process, and a file read again would give other documents.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from fineweb_mask.models.errors import ModelError

NEEDED = "pip install '.[warc]' in a checkout, or the packages of the extra `warc` in pyproject.toml"


class ExtractionError(ModelError):
    """What reads crawls is not installed."""


def version_of_extraction() -> str:
    """Return the version of trafilatura, by which the same page may get another text.

    Raises
    ------
    ExtractionError
        If it is not installed.
    """
    try:
        return version("trafilatura")
    except PackageNotFoundError as error:
        raise ExtractionError(f"WARC files need trafilatura, which is not installed: {NEEDED}") from error


def check_extraction() -> None:
    """Check that what reads crawls is installed.

    Raises
    ------
    ExtractionError
        If it is not.
    """
    for package in ("warcio", "trafilatura"):
        if find_spec(package) is None:
            raise ExtractionError(f"WARC files need {package}, which is not installed: {NEEDED}")


def extract_text(page: bytes) -> str | None:
    """Return the main text of an HTML page in any encoding, or None if it has none.

    Examples
    --------
    >>> page = "<html><nav>Menu</nav><article><p>" + "A sentence of the page. " * 20 + "</p></article></html>"
    >>> extract_text(page.encode())[:23]
    'A sentence of the page.'
    """
    from trafilatura import extract

    text: str | None = extract(page, favor_precision=True, include_comments=False, deduplicate=False)
    return text
