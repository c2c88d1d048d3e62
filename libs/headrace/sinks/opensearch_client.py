"""The HTTP client of an OpenSearch sink: requests, and errors in the frame's terms.

No error contains a document: the server's reasons quote values, so only its kinds of errors and the
names of fields are repeated.
"""

from __future__ import annotations

import asyncio
import base64
import io
import random
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import aiohttp
import orjson
from yarl import URL

from headrace.errors import describe
from headrace.sinks.port import SinkAwayError, SinkError, SinkOptions
from headrace.sinks.target_options import check

ANSWER_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
# Without progress for this long, the session ends.
RETRY_S = 300.0
PAUSE_S = 0.2
PAUSE_S_MAX = 10.0
_PORT = 9200
_FIELD = re.compile(r"field \[([^\]]{1,200})\]")


@dataclass(frozen=True, slots=True)
class Login:
    """How to reach a server."""

    username: str = ""
    password: str = field(default="", repr=False)
    # Implied by any of the files.
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer that is no failure of the request as a whole."""

    status: int
    body: Any


class Client:
    """A connection to one server, or to what distributes requests among several."""

    def __init__(self, given: SinkOptions, login: Login) -> None:
        url = urlsplit(given.to)
        # The address is shown by `plan` and in messages, so it must not contain the password.
        valid = bool(url.hostname) and url.password is None and url.path in {"", "/"}
        check(
            valid and not url.query and not url.fragment,
            given.name,
            "to",
            "It is opensearch://user@host:9200; set the password as an option.",
        )
        self._name = given.name
        self.where = f"OpenSearch at {url.hostname}:{url.port or _PORT}"
        secure = login.tls or bool(login.ca_file or login.certificate_file)
        host = f"[{url.hostname}]" if ":" in str(url.hostname) else url.hostname
        self._base = f"{'https' if secure else 'http'}://{host}:{url.port or _PORT}"
        username = unquote(url.username or "") or login.username
        self._headers: dict[str, str] = {}
        if username:
            both = f"{username}:{login.password}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(both).decode()}"
        self._login = login
        self._http: aiohttp.ClientSession | None = None

    async def connect(self) -> None:
        """Create the client; connections follow."""
        await self.close()
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls()),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # A load balancer's cookie would send every request to the same server.
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._login.ca_file or None)
            if self._login.certificate_file:
                context.load_cert_chain(self._login.certificate_file, self._login.key_file or None)
        except OSError as error:
            raise SinkError(
                f"A certificate of sink {self._name} can't be read: {describe(error)}",
                remedy="Check ca_file, certificate_file and key_file.",
            ) from error
        return context

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        accept: tuple[int, ...] = (),
        **query: str,
    ) -> HttpAnswer:
        """Send a request. Returns a success, or an answer with one of the statuses `accept`; tries
        again while the server is too busy.
        """
        data = body if isinstance(body, bytes | None) else orjson.dumps(body)
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        patience = Pauses(self.where)
        while True:
            found = await self._once(method, path, data, kind, query)
            if found.status < 300 or found.status in accept:
                return found
            if found.status != 429:
                raise self._failed(method, path, found)
            await patience.pause("it is too busy")

    async def _once(
        self, method: str, path: str, data: bytes | None, kind: str, query: Mapping[str, str]
    ) -> HttpAnswer:
        assert self._http is not None, "the sink is open"
        # Already encoded: a name may contain any byte.
        url = URL(f"{self._base}{path}", encoded=True).with_query(query)
        # As a file, a large body is sent in pieces, and other tasks run in between.
        sent: dict[str, Any] = {}
        if data is not None:
            sent = {"data": io.BytesIO(data), "headers": {"Content-Type": kind}}
        try:
            async with self._http.request(
                method,
                url,
                # A redirect would take documents to a host that the configuration does not name.
                allow_redirects=False,
                **sent,
            ) as answer:
                raw = await answer.read()
                return HttpAnswer(answer.status, _decoded(raw))
        except aiohttp.ClientConnectorCertificateError as error:
            raise SinkAwayError(
                f"The certificate of {self.where} is not valid: {describe(error)}",
                remedy="Renew it, or name its authority in `ca_file`.",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise SinkAwayError(f"{self.where} did not answer: {describe(error)}") from error

    def _failed(self, method: str, path: str, found: HttpAnswer) -> SinkError:
        said = reason(found.body)
        doing = f"{method} {path.partition('?')[0]}"
        # A blocked index, as on a full disk, answers 403 too, and that passes.
        if found.status in {401, 403} and not is_blocked(found.body):
            return SinkError(
                f"{self.where} does not allow {self._name} to {doing} ({found.status})",
                remedy=(
                    "Check username and password. The user needs indices:* on its indices, and "
                    "indices:admin/get, aliases and mappings on `*~*`."
                ),
            )
        if found.status >= 500 or is_blocked(found.body):
            return SinkAwayError(f"{self.where} can't {doing} now: {found.status} {said}")
        return SinkError(f"{self.where} refused to {doing}: {found.status} {said}")


class Pauses:
    """Pauses between attempts, which become longer, and end."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._pause_s = PAUSE_S
        self._deadline = time.monotonic() + RETRY_S

    async def pause(self, why: str) -> None:
        """Wait before the next attempt; raise `SinkAwayError` if there were enough."""
        if time.monotonic() + self._pause_s > self._deadline:
            raise SinkAwayError(f"{self._where} does not accept documents: {why}")
        # At random, so that the sinks of a server that was busy don't all return at one moment.
        await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # no secret
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)


def part(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


def reason(body: Any) -> str:
    """The kind of an error, and the field that it concerns; never its text, which quotes values."""
    error = body.get("error", body) if isinstance(body, dict) else {}
    if not isinstance(error, dict):
        return ""
    kinds = [str(error.get("type", "unknown error"))]
    cause = error.get("caused_by")
    if isinstance(cause, dict) and cause.get("type"):
        kinds.append(str(cause["type"]))
    named = _FIELD.search(str(error.get("reason", "")))
    where = f" in the field {named[1]}" if named else ""
    return f"{', '.join(kinds)}{where}"


def is_blocked(body: Any) -> bool:
    """Whether an index accepts no writes at the moment, as on a full disk."""
    return reason(body).startswith("cluster_block_exception")


def _decoded(raw: bytes) -> Any:
    try:
        return orjson.loads(raw) if raw else {}
    except ValueError:
        # Of a proxy in between.
        return {}
