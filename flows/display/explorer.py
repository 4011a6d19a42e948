"""Serve the map of a workspace's documents to a browser on this machine.

The page is embedding-atlas's (https://apple.github.io/embedding-atlas), of which only the files for browsers are used:
the packages that it asks for make vectors and places, which are there. The page reads the table once and runs its
queries in the browser, so that what is served is files. Releases after 0.22 need WebGPU in the browser.

embedding-atlas's own server is not used: it answers under any host name, so that other pages can read the documents,
runs any SQL that it is sent, and writes what it is sent into a cache.
"""

import glob
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import Any

import duckdb
from fastapi import FastAPI
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE

PACKAGE = "embedding-atlas==0.22.0"
TABLE = "dataset"
"""Name of the table in the page's queries."""
HIDDEN = ("number", "x", "y", "neighbours")
GROUPS = {"kept": "Kept", "topic": "Topic (words of its cluster)"}
NUMBERS = {
    "quality": "Quality",
    "near_duplicates": f"Near-duplicates (cosine from {NEAR_DUPLICATE})",
    "nearest_cosine": "Cosine with the nearest document",
    "token_count": "Tokens",
    "n_chars": "Characters",
}
"""Columns that have a chart at the beginning, and its title; a person adds others on the page."""


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


def metadata(path: Path) -> dict[str, Any]:
    """Return what the page reads first of a table: which columns hold what, and what it shows at the beginning."""
    with duckdb.connect() as connection:
        table = connection.from_parquet(glob.escape(str(path)))
        found = table.aggregate("topic AS content, median(x) AS x, median(y) AS y, count(*) AS priority", "topic")
        # The smaller half of the topics is labelled when a person zooms in.
        found = found.project("*, (rank() OVER (ORDER BY priority) <= count(*) OVER () / 2)::int AS level")
        labels = found.order("content").to_arrow_table().to_pylist()
        numbers = [name for name in NUMBERS if name in table.columns]
    place = {"x": "x", "y": "y"}
    shown = {"text": "text", "neighbors": "neighbours"}
    charts = [
        {"type": "embedding", "title": "Map", "data": {**place, **shown, "category": "kept"}},
        {"type": "instances", "title": "Documents"},
        *({"type": "count-plot", "title": title, "data": {"field": name}} for name, title in GROUPS.items()),
        *map(_histogram, numbers),
        {"type": "predicates", "title": "SQL conditions"},
    ]
    return {
        "props": {
            "data": {"table": TABLE, "id": "number", "projection": place, **shown},
            "initialState": {
                "charts": {str(number): chart for number, chart in enumerate(charts, 1)},
                "columnStyles": {name: {"display": "badge"} for name in (*GROUPS, "quality", "near_duplicates")}
                | {name: {"display": "hidden"} for name in HIDDEN},
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
        "title": NUMBERS[name],
        "layers": [
            {"mark": "bar", "style": {"fillColor": "$markColorFade"}, "encoding": encoding},
            {"mark": "bar", "filter": "$filter", "encoding": encoding},
        ],
        "selection": {"brush": {"encoding": "x"}},
        "widgets": [{"type": "scale.type", "channel": "x"}],
    }


def serve(table: Path, listener: socket, token: str) -> None:
    """Serve a table that `fineweb_mask.tasks.explore` wrote, at a socket that listens, until Ctrl-C.

    Only files below the path `token` are there, which no other page and no other user of the machine can guess.
    """
    import uvicorn

    shown = metadata(table)
    app = FastAPI(openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1"])
    app.get(f"/{token}/data/metadata.json")(lambda: shown)
    app.api_route(f"/{token}/data/dataset.parquet", methods=["GET", "HEAD"])(lambda: FileResponse(table))
    app.mount(f"/{token}", StaticFiles(directory=page_files(), html=True))
    with suppress(KeyboardInterrupt):
        # Without a line for each request that is malformed.
        uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none")).run(sockets=[listener])
