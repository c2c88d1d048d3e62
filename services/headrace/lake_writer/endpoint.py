"""A read-only Iceberg REST catalog on the lake-writer's port, for engines that know no other.

Each request reads the catalog, so it shows the last cut. It lists this lake's tables, returns their
metadata, and gives out no credentials: readers bring their own for the files. It answers only
if no other machine can reach the port, or to requests with HEADRACE_LAKE_TOKEN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from headrace import log as logs
from headrace.errors import HeadraceError, describe
from headrace.http.authority import bears, is_loopback
from headrace.lake.catalog import Catalog, TableName
from headrace.lake.errors import LakeUnreachableError
from headrace.lake.files import LakeFiles, canonical
from headrace.lake.opening import open_catalog
from headrace.settings import Settings

log = logs.logger("lake-writer")

ROOT = "/iceberg/v1"
# Less than the limit of all answers, so that this error is the answer.
TIMEOUT_S = 12.0
METADATA_BYTES_MAX = 64 << 20
PAGE_NAMES = 1000
# Separates the levels of a namespace in a path.
_LEVELS = "\x1f"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_NAMESPACE = "/namespaces/{namespace}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_ENDPOINTS = tuple(
    f"{method} /v1/{{prefix}}{path}"
    for method, path in (
        ("GET", "/namespaces"),
        ("GET", _NAMESPACE),
        ("HEAD", _NAMESPACE),
        ("GET", f"{_NAMESPACE}/tables"),
        ("GET", _TABLE),
        ("HEAD", _TABLE),
    )
)
Answer = Callable[[web.Request], Awaitable[web.Response]]


class _RefusedError(Exception):
    """A request that gets an error of Iceberg's form."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Endpoint:
    """The routes; few requests at the same time, so that readers never crowd the writer out."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._requests = asyncio.Semaphore(4)
        # A connection is used by one thread at a time.
        self._reading = asyncio.Lock()
        self._catalog: Catalog | None = None

    def extend(self, app: web.Application) -> None:
        """Add the routes."""
        routes: tuple[tuple[str, Answer], ...] = (
            ("/config", self._config),
            ("/namespaces", self._namespaces),
            (_NAMESPACE, self._namespace),
            (f"{_NAMESPACE}/tables", self._tables),
            (_TABLE, self._table),
        )
        for path, answer in routes:
            app.router.add_get(f"{ROOT}{path}", self._guarded(answer))
        # After the others. Clients need Iceberg's form also for what is not there.
        app.router.add_route("*", f"{ROOT}/{{rest:.*}}", self._guarded(_no_such_route))
        app.on_cleanup.append(self._close)

    def _guarded(self, answer: Answer) -> Answer:
        async def guarded(request: web.Request) -> web.Response:
            try:
                self._authorize(request)
                # The timeout includes the wait for a turn: a client learns in time that the lake is
                # busy.
                async with asyncio.timeout(TIMEOUT_S), self._requests:
                    return await answer(request)
            except _RefusedError as error:
                return _error(error.status, error.kind, str(error))
            except TimeoutError:
                return _error(503, "ServiceUnavailableException", "the lake did not answer in time")
            except HeadraceError as error:
                log.warning("lake_request_failed", path=request.path, reason=describe(error))
                return _error(503, "ServiceUnavailableException", describe(error))

        return guarded

    def _authorize(self, request: web.Request) -> None:
        token = self._settings.lake.token
        if token is not None:
            if not bears(request.headers.get("Authorization", ""), token):
                raise _RefusedError(
                    401,
                    "NotAuthorizedException",
                    "the lake requires a bearer token: send the value of HEADRACE_LAKE_TOKEN",
                )
        elif not self._local(request):
            raise _RefusedError(
                403,
                "ForbiddenException",
                "the lake answers on this machine only: set HEADRACE_LAKE_TOKEN",
            )

    def _local(self, request: web.Request) -> bool:
        """Whether the request names this machine; another name that leads here belongs to another
        site.
        """
        return (
            is_loopback(self._settings.process.http_host)
            and is_loopback(request.url.host or "")
            and request.headers.get("Sec-Fetch-Site") != "cross-site"
        )

    async def _config(self, _: web.Request) -> web.Response:
        return _answer({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS})

    async def _namespaces(self, request: web.Request) -> web.Response:
        names = {table.namespace for table in await self._known()}
        parent = request.query.get("parent")
        if parent:
            _require_namespace(names, parent.replace(_LEVELS, "."))
            # A schema contains no schemas.
            names = set()
        page, following = _page(names, request.query)
        return _answer({"namespaces": [[name] for name in page], "next-page-token": following})

    async def _namespace(self, request: web.Request) -> web.Response:
        name = _namespace_of(request)
        _require_namespace({table.namespace for table in await self._known()}, name)
        return _found(request, {"namespace": [name], "properties": {}})

    async def _tables(self, request: web.Request) -> web.Response:
        namespace = _namespace_of(request)
        known = await self._known()
        _require_namespace({table.namespace for table in known}, namespace)
        names = {table.name for table in known if table.namespace == namespace}
        page, following = _page(names, request.query)
        identifiers = [{"namespace": [namespace], "name": name} for name in page]
        return _answer({"identifiers": identifiers, "next-page-token": following})

    async def _table(self, request: web.Request) -> web.Response:
        table = TableName(_namespace_of(request), request.match_info["table"])
        location = (await self._known()).get(table)
        if location is None:
            raise _RefusedError(404, "NoSuchTableException", f"the lake has no table {table}")
        if request.method == "HEAD":
            return _found(request, {})
        snapshots = request.query.get("snapshots", "all")
        metadata = await asyncio.to_thread(self._metadata, location, snapshots)
        return _answer({"metadata-location": location, "metadata": metadata, "config": {}})

    async def _known(self) -> Mapping[TableName, str]:
        """The lake's tables, and the location of each one's metadata."""
        async with self._reading:
            return await asyncio.to_thread(self._read)

    def _read(self) -> Mapping[TableName, str]:
        try:
            if self._catalog is None:
                self._catalog = open_catalog(self._settings)
            found = self._catalog.tables()
        except LakeUnreachableError:
            # The next request opens another connection.
            self._forget()
            raise
        below = f"{(self._settings.lake.url or '').rstrip('/')}/"
        # Tables of other programs may be anywhere.
        return {
            table: place for table, place in found.items() if canonical(place).startswith(below)
        }

    def _metadata(self, location: str, snapshots: str) -> dict[str, Any]:
        # Only below the lake's own URL: `_read` lets no other location through.
        files = LakeFiles(self._settings.lake.url or "", timeout_s=TIMEOUT_S)
        # Asked before it is read into the writer's memory.
        if files.size(location) > METADATA_BYTES_MAX:
            raise _RefusedError(
                503, "ServiceUnavailableException", f"{location} is too large: expire snapshots"
            )
        metadata: dict[str, Any] = orjson.loads(files.get(location))
        if snapshots == "refs":
            # Clients ask for this to save bytes: every cut leaves a snapshot.
            kept = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()}
            metadata["snapshots"] = [
                each for each in metadata.get("snapshots", []) if each["snapshot-id"] in kept
            ]
        return metadata

    def _forget(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    async def _close(self, _: web.Application) -> None:
        async with self._reading:
            await asyncio.to_thread(self._forget)


async def _no_such_route(request: web.Request) -> web.Response:
    if request.method in {"GET", "HEAD"}:
        raise _RefusedError(404, "NotFoundException", f"there is nothing at {request.path}")
    raise _RefusedError(
        406,
        "UnsupportedOperationException",
        "this catalog is read-only: the lake's tables are written by lake-writer, from PostgreSQL",
    )


def _namespace_of(request: web.Request) -> str:
    """The catalog joins the levels of a namespace with dots, as Iceberg's JDBC catalogs do."""
    return request.match_info["namespace"].replace(_LEVELS, ".")


def _require_namespace(known: set[str], name: str) -> None:
    if name not in known:
        raise _RefusedError(404, "NoSuchNamespaceException", f"the lake has no schema {name}")


def _page(names: set[str], query: Mapping[str, str]) -> tuple[list[str], str | None]:
    """The names that a request asks for, and where the next page starts."""
    if "pageToken" not in query and "pageSize" not in query:
        return sorted(names), None
    asked = query.get("pageSize", str(PAGE_NAMES))
    if not asked.isascii() or not asked.isdigit() or int(asked) < 1:
        raise _RefusedError(
            400, "BadRequestException", f"pageSize={asked} is not a positive number"
        )
    # By name and not by number: tables may come and go between two pages.
    rest = [name for name in sorted(names) if name > query.get("pageToken", "")]
    page = rest[: int(asked)]
    if len(page) == len(rest):
        return page, None
    return page, page[-1]


def _found(request: web.Request, body: Mapping[str, Any]) -> web.Response:
    """The object; for HEAD only that it exists."""
    if request.method == "HEAD":
        return web.Response(status=204, headers=_HEADERS)
    return _answer(body)


def _answer(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body),
        status=status,
        content_type="application/json",
        headers=_HEADERS,
    )


def _error(status: int, kind: str, message: str) -> web.Response:
    return _answer({"error": {"message": message, "type": kind, "code": status}}, status)
