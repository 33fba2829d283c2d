"""The retriever as a small HTTP service, for engines in other processes.

| request | answer |
|---|---|
| `POST /search` `{"query", "k": 5}` | `{"hits": [{"docid", "score", "text"}]}` |
| `POST /retrieve` `{"queries": [...], "topk": 3, "return_scores": false}` | Search-R1's retriever interface: |
| | `{"result": [[{"document": {"id", "contents"}, "score"}]]}`, without scores `{"result": [[{"id", "contents"}]]}` |
| `GET /documents/{docid}` | `{"docid", "text"}`, or 404 |
| `GET /health` | `{"status": "ok", "backend", "documents"}` |

A request beyond the limits gets a 4xx with a reason, one beyond the queue a 503. Queries are never logged.
"""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from estr.errors import UserError
from estr.tools.search import Hit, SearchIndex

if TYPE_CHECKING:
    from fastapi import FastAPI

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class ServiceLimits:
    """What one request may ask for, and how many are served at a time."""

    query_characters: int = 4_096
    batch: int = 512
    """Queries in one `/retrieve`."""
    k: int = 100
    body_bytes: int = 4 * 1024 * 1024
    workers: int = 4
    """Threads that search."""
    queue: int = 1_024
    """Requests that may wait for a thread."""


def open_index(folder: Path) -> SearchIndex:
    """The index that `BM25Index.save` or `DenseIndex.save` wrote. Raises `UserError` if it is none or damaged."""
    from estr.tools.documents import read_kind

    kind = read_kind(folder)
    if kind == "bm25":
        from estr.tools.bm25 import BM25Index

        return BM25Index.load(folder)
    if kind == "dense":
        from estr.tools.dense import DenseIndex

        return DenseIndex.load(folder)
    raise UserError(f"{folder}: an index of unknown kind {kind!r}")


def create_app(backend: SearchIndex, limits: ServiceLimits | None = None) -> "FastAPI":
    """The ASGI application; `backend` must allow searches from several threads."""
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from pydantic import BaseModel

    limits = limits or ServiceLimits()
    pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="search")
    running = 0

    class SearchRequest(BaseModel):
        query: str
        k: int = 5

    class RetrieveRequest(BaseModel):
        queries: list[str]
        topk: int = 3
        return_scores: bool = False

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        pool.shutdown(cancel_futures=True)

    app = FastAPI(title="estr search", lifespan=lifespan, openapi_url=None)
    app.add_middleware(_BodyLimit, limit=limits.body_bytes)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # FastAPI's own answer repeats the whole input
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        return JSONResponse({"detail": f"{place}: {first['msg']}"}, 422)

    def check(queries: list[str], k: int) -> None:
        if not 1 <= k <= limits.k:
            raise HTTPException(422, f"the number of hits must be 1 to {limits.k}")
        if len(queries) > limits.batch:
            raise HTTPException(422, f"more than {limits.batch} queries in one request")
        if any(len(query) > limits.query_characters for query in queries):
            raise HTTPException(422, f"a query is longer than {limits.query_characters} characters")
        try:
            for query in queries:
                query.encode()  # half of a surrogate pair is no text for a tokenizer
        except UnicodeEncodeError:
            raise HTTPException(422, "a query is not Unicode text") from None

    async def in_pool(work: Callable[[], _T]) -> _T:
        nonlocal running
        if running >= limits.workers + limits.queue:
            raise HTTPException(503, "too many requests are waiting", {"Retry-After": "1"})
        running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except Exception as error:
            # the message or the traceback's last line could hold the query
            _log.error("the index failed: %s", type(error).__name__)
            raise HTTPException(500, "the index failed") from None
        finally:
            running -= 1

    @app.post("/search")
    async def search(request: SearchRequest) -> JSONResponse:
        check([request.query], request.k)
        hits = await in_pool(lambda: backend.search(request.query, request.k))
        return JSONResponse({"hits": [{"docid": h.docid, "score": h.score, "text": h.text} for h in hits]})

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> JSONResponse:
        check(request.queries, request.topk)
        found = await in_pool(lambda: [backend.search(query, request.topk) for query in request.queries])
        return JSONResponse({"result": [[_search_r1(hit, request.return_scores) for hit in hits] for hits in found]})

    @app.get("/documents/{docid:path}")
    async def document(docid: str) -> JSONResponse:
        def text_or_none() -> str | None:
            try:
                return backend.get(docid)
            except KeyError:
                return None

        text = await in_pool(text_or_none)
        if text is None:
            raise HTTPException(404, "there is no document of this docid")
        return JSONResponse({"docid": docid, "text": text})

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok", "backend": backend.kind, "documents": len(backend)})

    return app


def serve(
    backend: SearchIndex,
    host: str = "127.0.0.1",
    port: int = 8000,
    expose: bool = False,
    limits: ServiceLimits | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests under way (up to 5 s) and return; main thread only.

    Prints one line, `serving http://HOST:PORT`, once requests are answered; `port` 0 takes a free port. The service
    has no authentication, so another address than this machine's own takes `expose`. Raises `UserError` for such an
    address without it, and for a port that is taken.
    """
    import uvicorn

    if not expose and not _is_loopback(host):
        raise UserError(
            f"--host {host}: other machines could reach the search service, which asks for no password; "
            "use 127.0.0.1, or add --expose if the network is trusted"
        )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            shown = f"[{host}]" if ":" in host else host
            print(f"serving http://{shown}:{listener.getsockname()[1]}", flush=True)

    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port} ({error.strerror}); choose another --port") from error
    config = uvicorn.Config(
        create_app(backend, limits), log_level="warning", access_log=False, timeout_graceful_shutdown=5
    )
    server = Server(config)
    # uvicorn raises the signal once more after its shutdown; this handler makes that exit code 0
    before = signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    try:
        with listener, contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)


def _search_r1(hit: Hit, with_score: bool) -> dict[str, Any]:
    document = {"id": hit.docid, "contents": hit.text}
    return {"document": document, "score": hit.score} if with_score else document


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _BodyLimit:
    """ASGI middleware: 413 for a body of more than `limit` bytes, announced or not."""

    def __init__(self, app: Any, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from fastapi import HTTPException
        from fastapi.responses import JSONResponse

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reason = f"the request is longer than {self._limit} bytes"
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            await JSONResponse({"detail": reason}, 413)(scope, receive, send)
            return
        received = 0

        async def counted() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise HTTPException(413, reason)
            return message

        await self._app(scope, counted, send)
