"""Serve the map of a workspace's documents to a browser on this machine, or write it as a folder for any web server.

The page is embedding-atlas's (https://apple.github.io/embedding-atlas), of which only the files for browsers are used:
the packages that it asks for make vectors and places, which are there. Releases after 0.22 need WebGPU in the browser.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import Any

import duckdb
import pyarrow as pa
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.catalog.views import literal, pattern_of

PACKAGE = "embedding-atlas==0.22.0"
TABLE = "dataset"
"""Name of the table in the page's queries."""
SHOWN = {"text": "text", "neighbors": "neighbours"}
NUMBERS = frozenset("TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT DOUBLE".split())
FIRST_CHARTS = ("quality", "near_duplicates", "nearest_cosine", "token_count", "n_chars")
NO_CHART = frozenset(("number", "x", "y", "row", "source_row", "inclusion"))
HIDDEN = ("number", "x", "y", "neighbours")
TITLES = {
    "kept": "Kept",
    "kept_by": "Kept by which selection",
    "topic": "Topic (words of its cluster)",
    "quality": "Quality",
    "near_duplicates": "Near-duplicates on the map (cosine from 0.95)",
    "nearest_cosine": "Cosine with the nearest document",
    "token_count": "Tokens",
    "n_chars": "Characters",
}
MEMORY_LIMIT = "4GB"


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


def metadata(table: duckdb.DuckDBPyRelation, database: dict[str, Any]) -> dict[str, Any]:
    """Return what the page reads first: which columns hold what, and what it shows at the beginning.

    Parameters
    ----------
    table
        The documents, as `fineweb_mask.tasks.explore` wrote them.
    database
        Where queries run: on this server, `{"type": "rest"}`, or in the browser, `{"type": "wasm", "load": True}`.
    """
    types = dict(zip(table.columns, map(str, table.types), strict=True))
    labels = table.aggregate("topic AS content, median(x) AS x, median(y) AS y, count(*) AS priority", "topic")
    # The smaller half of the topics is labelled when a person zooms in.
    labels = labels.project("*, (rank() OVER (ORDER BY priority) <= count(*) OVER () / 2)::int AS level")
    colour = "kept_by" if "kept_by" in types else "kept"
    numbers = [name for name, kind in types.items() if kind in NUMBERS and name not in NO_CHART]
    strata = [name for name in ("dump", "language") if name in types]
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
        *({"type": "count-plot", "title": name, "data": {"field": name}} for name in strata),
        *(_histogram(name) for name in numbers if name not in first),
        {"type": "predicates", "title": "SQL conditions"},
    ]
    return {
        "props": {
            "data": {"table": TABLE, "id": "number", "projection": place, "text": "text", "neighbors": "neighbours"},
            "initialState": {
                "charts": {str(number): chart for number, chart in enumerate(charts, 1)},
                "columnStyles": {name: {"display": "badge"} for name in (colour, "topic", "quality", "near_duplicates")}
                | {name: {"display": "hidden"} for name in HIDDEN},
            },
            "embeddingViewLabels": labels.order("content").to_arrow_table().to_pylist(),
        },
        "database": database,
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


def application(table: Path) -> FastAPI:
    """Return the web application that shows a table, which `fineweb_mask.tasks.explore` wrote.

    Queries of the page run in this process, in memory, where they reach neither files nor the network. Only browsers
    that ask this machine by its own name are answered, so that no other page can read the documents.
    """
    connection = duckdb.connect(":memory:", config={"memory_limit": MEMORY_LIMIT})
    connection.execute(f"CREATE TABLE {TABLE} AS FROM read_parquet({literal(pattern_of(str(table)))})")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    shown = metadata(connection.table(TABLE), {"type": "rest"})
    app = FastAPI(openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]", "testserver"])

    @app.get("/data/metadata.json")
    def read_metadata() -> dict[str, Any]:
        return shown

    @app.get("/data/query")
    async def get_query(request: Request) -> Response:
        return await run_in_threadpool(_answer, connection, json.loads(request.query_params["query"]))

    @app.post("/data/query")
    async def post_query(request: Request) -> Response:
        return await run_in_threadpool(_answer, connection, json.loads(await request.body()))

    @app.post("/data/selection")
    async def post_selection(request: Request) -> Response:
        return await run_in_threadpool(_chosen, connection, json.loads(await request.body()))

    @app.get("/data/cache/{name}")
    def read_cache(name: str) -> Response:  # noqa: ARG001 - nothing is kept
        return Response(status_code=404)

    @app.post("/data/cache/{name}")
    def write_cache(name: str) -> Response:  # noqa: ARG001
        return Response(status_code=204)

    app.mount("/", StaticFiles(directory=page_files(), html=True))
    return app


def serve(table: Path, port: int, when_ready: Callable[[], None] | None = None) -> None:
    """Serve the map at a port of this machine until Ctrl-C; call `when_ready` once it can be opened."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            if when_ready is not None and self.started:
                await run_in_threadpool(when_ready)

    with suppress(KeyboardInterrupt):
        Server(uvicorn.Config(application(table), host="127.0.0.1", port=port, log_level="warning")).run()


def _answer(connection: duckdb.DuckDBPyConnection, query: dict[str, Any]) -> Response:
    """Run a query of the page, which wants nothing (`exec`), an Arrow stream or JSON."""
    try:
        with connection.cursor() as cursor:
            result = cursor.sql(query["sql"])
            if query["type"] == "exec" or result is None:
                return JSONResponse({})
            if query["type"] == "json":
                return Response(_json(result.to_arrow_table()), media_type="application/json")
            return Response(_stream(result.to_arrow_table()), media_type="application/octet-stream")
    except duckdb.Error as error:
        return JSONResponse({"error": str(error)}, status_code=500)


def _chosen(connection: duckdb.DuckDBPyConnection, query: dict[str, Any]) -> Response:
    """Return the documents that a person chose on the page, as a file."""
    where = f" WHERE {query['predicate']}" if query.get("predicate") else ""
    try:
        with connection.cursor() as cursor:
            table = cursor.sql(f"SELECT * EXCLUDE (neighbours) FROM {TABLE}{where}").to_arrow_table()  # noqa: S608
    except duckdb.Error as error:
        return JSONResponse({"error": str(error)}, status_code=500)
    return Response(_as_file(table, query["format"]), media_type="application/octet-stream")


def _as_file(table: pa.Table, kind: str) -> bytes:
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, sink)
    elif kind == "csv":
        import pyarrow.csv

        pyarrow.csv.write_csv(table, sink)
    elif kind == "jsonl":
        sink.write("".join(json.dumps(row, default=str) + "\n" for row in table.to_pylist()).encode())
    else:
        sink.write(_json(table).encode())
    return bytes(sink.getvalue())


def _json(table: pa.Table) -> str:
    return json.dumps(table.to_pylist(), default=str)


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def write_folder(table: Path, folder: Path) -> None:
    """Write the page and its table as files that any web server can show, without Python.

    Raises
    ------
    SettingsError
        If the folder exists and is not empty, or embedding-atlas is not installed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise SettingsError(f"{folder} is not empty: name a new folder for the map")
    shutil.copytree(page_files(), folder, dirs_exist_ok=True)
    (folder / "data").mkdir(exist_ok=True)
    shutil.copy(table, folder / "data" / "dataset.parquet")
    with duckdb.connect() as connection:
        content = metadata(connection.from_parquet(pattern_of(str(table))), {"type": "wasm", "load": True})
    (folder / "data" / "metadata.json").write_text(json.dumps({**content, "isStatic": True}))
