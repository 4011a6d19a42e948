"""Serve the map of a workspace's documents to a browser on this machine, or write it as a folder for any web server.

The page is embedding-atlas's (https://apple.github.io/embedding-atlas), of which only the files for browsers are used:
the packages that it asks for make vectors and places, which are there. The page reads the table once and runs its
queries in the browser, so that what is served is files. Releases after 0.22 need WebGPU in the browser.

embedding-atlas's own server is not used: it answers under any host name, so that other pages can read the documents,
runs any SQL that it is sent, and writes what it is sent into a cache.
"""

import glob
import json
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import Any

import duckdb
from fastapi import FastAPI, Request, Response
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.tasks.explore import OWN, WHY
from fineweb_mask.tasks.storage.atomic import atomic_folder
from fineweb_mask.tasks.storage.parquet import read_table

PACKAGE = "embedding-atlas==0.22.0"
TABLE = "dataset"
"""Name of the table in the page's queries."""
SHOWN = {"text": "text", "neighbors": "neighbours"}
NUMBERS = frozenset("TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT DOUBLE".split())
FIRST_CHARTS = ("quality", "near_duplicates", "nearest_cosine", "token_count", "n_chars")
MOST_VALUES = 24
"""Values of a column of texts that has a chart."""
NO_CHART = frozenset(("number", "x", "y", "row", "source_row", "inclusion"))
NOT_COPIED = ("duckdb-mvp-*", "duckdb-browser-mvp*", "wasm_mvp", "ort-wasm-*")
"""Files of the page for browsers of before 2022, and for models that make vectors, which are there."""
HIDDEN = ("number", "x", "y", "neighbours")
OWN_SITE = frozenset(("same-origin", "none"))  # `none`: typed, or opened by a program
GUARDS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
TITLES = {
    "kept": "Kept",
    "kept_by": "Kept by which selection",
    "topic": "Topic (words of its cluster)",
    "quality": "Quality",
    "near_duplicates": f"Near-duplicates (cosine from {NEAR_DUPLICATE})",
    "nearest_cosine": "Cosine with the nearest document",
    "token_count": "Tokens",
    "n_chars": "Characters",
}


def page_files() -> Path:
    """Return the folder of the page's files.

    Raises
    ------
    SettingsError
        If embedding-atlas is not installed.
    """
    found = find_spec("embedding_atlas")  # it is not imported: it would ask for packages that its page does not need
    if found is None or found.origin is None:
        raise SettingsError(f"explore needs the page of embedding-atlas: run `pip install --no-deps {PACKAGE}` first")
    return Path(found.origin).with_name("static")


def metadata(path: Path, *, answers: bool) -> dict[str, Any]:
    """Return what the page reads first of a table: which columns hold what, and what it shows at the beginning.

    `answers` says whether the links to the documents' decisions lead anywhere: in a folder of files, they do not.
    """
    with duckdb.connect() as connection:
        table = connection.from_parquet(glob.escape(str(path)))
        types = dict(zip(table.columns, map(str, table.types), strict=True))
        found = table.aggregate("topic AS content, median(x) AS x, median(y) AS y, count(*) AS priority", "topic")
        # The smaller half of the topics is labelled when a person zooms in.
        found = found.project("*, (rank() OVER (ORDER BY priority) <= count(*) OVER () / 2)::int AS level")
        labels = found.order("content").to_arrow_table().to_pylist()
        texts = [name for name, kind in types.items() if kind in ("VARCHAR", "BOOLEAN") and name not in OWN]
        quoted = [f'count(DISTINCT "{name.replace(chr(34), 2 * chr(34))}")' for name in texts]
        [values] = table.aggregate(", ".join(quoted)).fetchall() if texts else [()]
        groups = [name for name, count in zip(texts, values, strict=True) if 2 <= count <= MOST_VALUES]
    colour = "kept_by" if "kept_by" in types else "kept"
    numbers = [name for name, kind in types.items() if kind in NUMBERS and name not in NO_CHART]
    first = [name for name in FIRST_CHARTS if name in numbers]
    place = {"x": "x", "y": "y"}
    charts = [
        {"type": "embedding", "title": "Map", "data": {**place, **SHOWN, "category": colour}},
        {"type": "instances", "title": "Documents"},
        *(
            {"type": "count-plot", "title": TITLES.get(name, name), "data": {"field": name}}
            for name in (colour, "topic")
        ),
        *map(_histogram, first),
        *({"type": "count-plot", "title": name, "data": {"field": name}} for name in groups),
        *(_histogram(name) for name in numbers if name not in first),
        {"type": "predicates", "title": "SQL conditions"},
    ]
    return {
        "props": {
            "data": {"table": TABLE, "id": "number", "projection": place, "text": "text", "neighbors": "neighbours"},
            "initialState": {
                "charts": {str(number): chart for number, chart in enumerate(charts, 1)},
                "columnStyles": {name: {"display": "badge"} for name in (colour, "topic", "quality", "near_duplicates")}
                | {name: {"display": "hidden"} for name in (*HIDDEN, *(() if answers else (WHY,)))}
                | ({WHY: {"renderer": "url", "display": "full"}} if answers else {}),
            },
            "embeddingViewLabels": labels,
        },
        "database": {"type": "wasm", "load": True},  # in the browser
        "isStatic": True,
    }


def _histogram(name: str) -> dict[str, Any]:
    """Return the chart of a column of numbers: all documents, those that are chosen before them; brush to choose."""
    encoding = {"x": {"field": name}, "y": {"aggregate": "count"}}
    return {
        "title": TITLES.get(name, name),
        "layers": [
            {"mark": "bar", "style": {"fillColor": "$markColorFade"}, "encoding": encoding},
            {"mark": "bar", "filter": "$filter", "encoding": encoding},
        ],
        "selection": {"brush": {"encoding": "x"}},
        "widgets": [{"type": "scale.type", "channel": "x"}],
    }


def application(table: Path, token: str, why: Callable[[str], str]) -> FastAPI:
    """Return the web application that shows a table, which `fineweb_mask.tasks.explore` wrote.

    `why` returns what every stage decided on the document with an id; it is asked when a person follows its link.

    It only answers requests for files, below the path `token`, and only browsers that ask this machine by its own name
    and for no other page: so that neither other pages nor other users of the machine can read the documents.
    """
    shown, ids = metadata(table, answers=True), read_table(table, columns=["id"])["id"]

    def answer(number: int) -> Response:
        if not 0 <= number < len(ids):
            return Response(status_code=404)
        return PlainTextResponse(why(ids[number].as_py()))

    app = FastAPI(openapi_url=None)
    app.middleware("http")(_for_its_own_page_only)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1"])
    app.get(f"/{token}/data/metadata.json")(lambda: shown)
    app.api_route(f"/{token}/data/dataset.parquet", methods=["GET", "HEAD"])(lambda: FileResponse(table))
    app.get(f"/{token}/{WHY}/{{number}}")(answer)
    app.mount(f"/{token}", StaticFiles(directory=page_files(), html=True))
    return app


async def _for_its_own_page_only(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
    """Answer what the page asks for itself, and a person who opens it by its address or a link."""
    asked = request.headers
    own = f"http://{asked.get('host')}"
    is_opened = (asked.get("sec-fetch-mode"), asked.get("sec-fetch-dest")) == ("navigate", "document")
    if asked.get("origin", own) != own or not (is_opened or asked.get("sec-fetch-site", "none") in OWN_SITE):
        return Response(status_code=403)
    answer = await proceed(request)
    answer.headers.update(GUARDS)
    return answer


def serve(table: Path, listener: socket, token: str, why: Callable[[str], str]) -> None:
    """Serve the map at a socket that listens, below the path `token`, until Ctrl-C; `why` is that of `application`."""
    import uvicorn

    with suppress(KeyboardInterrupt):
        # Without a line for each request that is malformed.
        config = uvicorn.Config(application(table, token, why), log_level="error", ws="none")
        uvicorn.Server(config).run(sockets=[listener])


def write_folder(table: Path, folder: Path) -> None:
    """Write the page and its table as files that any web server can show, without Python: 46 MB and the table."""
    with atomic_folder(folder) as partial:
        ignored = shutil.ignore_patterns(*NOT_COPIED)
        shutil.copytree(page_files(), partial, dirs_exist_ok=True, copy_function=shutil.copyfile, ignore=ignored)
        (partial / "data").mkdir(exist_ok=True)
        shutil.copyfile(table, partial / "data" / "dataset.parquet")
        (partial / "data" / "metadata.json").write_text(json.dumps(metadata(table, answers=False)))
