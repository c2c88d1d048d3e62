"""A connection to NATS that waits for its server, reconnects, and explains what is wrong.

Promises: an unreachable server is waited for, with a log line that names it; refused credentials
end in an error with the remedy; the service is unready while the connection is down. If TLS is
configured, nothing is sent to a server that doesn't use it: neither a password nor a subject. Never
logs a URL's user or password.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import DEFAULT_BUFFER_SIZE, Client
from nats.aio.transport import TcpTransport
from nats.errors import AuthorizationError
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.errors import HeadraceError, SettingError
from headrace.process.lifecycle import Scope
from headrace.settings import NatsSettings
from headrace.timing.backoff import Backoff

log = logs.logger("nats")

CONNECT_RETRY_S = 0.2
CONNECT_RETRY_S_MAX = 5.0
_SCHEMES = ("nats", "tls", "ws", "wss")


class NatsRefusedError(HeadraceError):
    """The NATS server refused the connection."""

    remedy = (
        "Check NATS_BRIDGE_USER and NATS_BRIDGE_PASSWORD (or NATS_CREDS, NATS_NKEY_SEED, "
        "NATS_TOKEN)."
    )


class NatsForbiddenError(HeadraceError):
    """The NATS server accepts this user, but doesn't permit the request."""

    remedy = (
        "Give the user these permissions (deploy/nats/permissions.conf lists those of each), "
        "or use another user. A user with a private inbox needs NATS_INBOX_PREFIX."
    )


class NatsTlsError(HeadraceError):
    """TLS with the NATS server failed, or the server offers none though it is required."""

    remedy = (
        "Check NATS_TLS_CA (the authority that signed the server's certificate), "
        "NATS_TLS_CERT, NATS_TLS_KEY and the host name."
    )


class NatsUnreachableError(HeadraceError):
    """No NATS server answers."""

    retry = True
    remedy = "Start it, or set NATS_URL (or NATS_HOST) to its address."


def servers(settings: NatsSettings) -> list[str]:
    """The URLs to connect to."""
    raw = settings.url.split(",") if settings.url else [settings.host]
    urls = [url.strip() for url in raw if url.strip()]
    if not urls:
        raise SettingError("NATS_URL names no server", remedy="Set it to nats://host:4222.")
    return [_checked(url if "://" in url else f"nats://{url}") for url in urls]


def _checked(url: str) -> str:
    """The URL, if it is a server's address; else an error that hides what may be a password."""
    # urlsplit raises ValueError for a port that is not a number.
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        # Here, because nats-py would only say that no server is available.
        if parts.scheme in _SCHEMES and parts.hostname and (parts.port is None or parts.port > 0):
            return url
    scheme, _, place = url.partition("://")
    raise SettingError(
        (
            f"NATS_URL (or NATS_HOST) contains {scheme}://{place.rpartition('@')[2]}, which is "
            "not a server's address"
        ),
        remedy=f"Write host:4222, optionally after {', '.join(f'{one}://' for one in _SCHEMES)}.",
    )


def shown(settings: NatsSettings) -> str:
    """The servers for a log line, without user and password."""
    parts = [urlsplit(url) for url in servers(settings)]
    return ",".join(f"{part.scheme}://{part.hostname}:{part.port or 4222}" for part in parts)


def _tls(settings: NatsSettings) -> ssl.SSLContext | None:
    if not (settings.tls_ca or settings.tls_cert):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise SettingError(
            f"the NATS certificates can't be loaded: {error}",
            remedy="Check NATS_TLS_CA, NATS_TLS_CERT and NATS_TLS_KEY.",
        ) from error
    return context


def _wants_tls(settings: NatsSettings) -> bool:
    asked = settings.tls_ca or settings.tls_cert
    return bool(asked) or any(urlsplit(url).scheme in ("tls", "wss") for url in servers(settings))


class _Transport(TcpTransport):
    """nats-py's client with a different way of failing.

    In uvloop, writing to a connection that was just reset raises a RuntimeError. nats-py expects an
    OSError: any other error ends its reconnecting permanently.

    nats-py waits for the same closed connection in two tasks, and cancels one of them when it
    closes while reconnecting. Without the shield, that cancels the other one too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nats-py's

    def write(self, payload: bytes) -> None:
        with _as_reset():
            super().write(payload)  # type: ignore[no-untyped-call]  # nats-py's

    def writelines(self, payload: list[bytes]) -> None:
        with _as_reset():
            super().writelines(payload)  # type: ignore[no-untyped-call]  # nats-py's

    async def wait_closed(self) -> None:
        closed = super().wait_closed()  # type: ignore[no-untyped-call]  # nats-py's
        await asyncio.shield(asyncio.ensure_future(closed))


@contextlib.contextmanager
def _as_reset() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ConnectionResetError(str(error)) from error


class _Client(Client):
    """nats-py's client starts TLS only if the server's first line asks for it. A server that leaves
    it out would receive everything in plain text.
    """

    def __init__(self, *, tls_wanted: bool) -> None:
        super().__init__()
        self._tls_wanted = tls_wanted

    def _connect_command(self) -> bytes:
        """Called on every connection, right before the first bytes are sent."""
        server = self._current_server
        # A WebSocket is encrypted before NATS's first line, which then asks for no TLS.
        encrypted = self._server_info.get("tls_required") or (
            server is not None and server.uri.scheme == "wss"
        )
        # Raised before CONNECT is written, which would contain the password.
        if self._tls_wanted and not encrypted:
            raise NatsError("nats: the server offers no TLS")
        return bytes(super()._connect_command())

    async def _connect_to_server(self, s: Any) -> None:
        # Only plain TCP needs the other transport.
        if self._transport or s.uri.scheme in ("ws", "wss"):
            await super()._connect_to_server(s)
            return
        # The same as nats-py's own method, except for the transport.
        s.last_attempt = time.monotonic()
        transport = _Transport()
        await transport.connect(
            s.uri, buffer_size=DEFAULT_BUFFER_SIZE, connect_timeout=self.options["connect_timeout"]
        )
        self._transport = transport

    async def connect_or_leave(self, options: Mapping[str, Any]) -> None:
        """Connect; closes a refused connection, which nats-py leaves open."""
        try:
            await self.connect(**options)
        except BaseException:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # nats-py's
            raise


async def _connect(settings: NatsSettings, chosen: Mapping[str, Any]) -> Client:
    client = _Client(tls_wanted=_wants_tls(settings))
    await client.connect_or_leave(chosen)
    return client


def _readable(settings: NatsSettings) -> None:
    """Reject unreadable files before connecting: nats-py would report them as an unreachable
    server.
    """
    for env, path in (("NATS_CREDS", settings.credentials), ("NATS_NKEY_SEED", settings.nkey_seed)):
        if path is None:
            continue
        try:
            path.open("rb").close()
        except OSError as error:
            raise SettingError(
                f"{env}={str(path)!r} can't be read: {error.strerror}",
                remedy=f"Name a readable file in {env}.",
            ) from error


def options(settings: NatsSettings, name: str) -> dict[str, Any]:
    """nats-py's options for these settings."""
    _readable(settings)
    chosen: dict[str, Any] = {
        "servers": servers(settings),
        "name": name,
        "reconnect_time_wait": settings.reconnect_wait_s,
        # -1 is forever: a service outlives any outage of its server.
        "max_reconnect_attempts": -1,
        # A half-open connection is detected by its silence: after three of these.
        "ping_interval": settings.ping_interval_s,
        "user": settings.user,
        "password": settings.password,
        "token": settings.token,
        "user_credentials": str(settings.credentials) if settings.credentials else None,
        "nkeys_seed": str(settings.nkey_seed) if settings.nkey_seed else None,
        "tls": _tls(settings),
        "inbox_prefix": settings.inbox_prefix,
    }
    return {key: value for key, value in chosen.items() if value is not None}


async def connect_once(settings: NatsSettings, name: str, **callbacks: Any) -> Client:
    """One attempt; raises an error that says what to do."""
    chosen = options(settings, name) | {"allow_reconnect": True, "connect_timeout": 3} | callbacks
    reasons: list[Exception] = []

    async def note(error: Exception) -> None:
        reasons.append(error)

    # With endless reconnects nats-py would also retry its first connection forever, silently.
    silent = {"disconnected_cb": None, "reconnected_cb": None, "error_cb": note}
    # Zero attempts would also mean forever; one attempt ends after the second.
    once = {"max_reconnect_attempts": 1, "reconnect_time_wait": 0.05, "allow_reconnect": False}
    probe = chosen | silent | once
    try:
        # A first connection without reconnecting, whose failure is reported; then the one that is
        # used.
        await (await _connect(settings, probe)).close()
        return await _connect(settings, chosen)
    except (NatsError, OSError) as error:
        raise _explained(settings, [error, *reasons]) from error


def _explained(settings: NatsSettings, seen: list[Exception]) -> HeadraceError:
    """The suite's error for a connection that failed."""
    at = f"NATS at {shown(settings)}"
    # nats-py reports the cause to its error callback, and raises only that no server is available.
    if any("authorization" in str(e).lower() or isinstance(e, AuthorizationError) for e in seen):
        return NatsRefusedError(f"{at} refuses these credentials")
    tls = next((e for e in seen if isinstance(e, ssl.SSLError) or "TLS" in str(e)), None)
    if tls is not None:
        return NatsTlsError(f"{at}: {getattr(tls, 'verify_message', '') or tls}")
    return NatsUnreachableError(f"{at} can't be reached ({seen[-1]})")


@contextlib.asynccontextmanager
async def connected(scope: Scope, settings: NatsSettings) -> AsyncIterator[Client]:
    """A connection for the service's lifetime; waits for the server first."""
    # A command that has finished closes its connection without a stop signal: that isn't a lost
    # connection.
    closing = asyncio.Event()
    client = await _first_connection(scope, settings, closing)
    try:
        yield client
    finally:
        closing.set()
        with contextlib.suppress(Exception):
            # A server that doesn't answer must not delay the end of the process.
            async with asyncio.timeout(2):
                await client.close()


def version_of(client: Client) -> str:
    """The server's version; nats-py's own text of it is meant for a debugger."""
    server = client.connected_server_version
    return f"{server.major}.{server.minor}.{server.patch}"


async def _first_connection(scope: Scope, settings: NatsSettings, closing: asyncio.Event) -> Client:
    backoff = Backoff(CONNECT_RETRY_S, CONNECT_RETRY_S_MAX)
    while True:
        try:
            client = await connect_once(
                settings, f"headrace-{scope.service}", **_callbacks(scope, settings, closing)
            )
        except NatsUnreachableError as error:
            scope.health.block("nats", str(error))
            await scope.pause(backoff.pause_s())
            # A stop while the server was away: the caller has no client to continue with.
            if scope.stopping.is_set():
                raise
        else:
            scope.health.unblock("nats")
            log.info("nats_connected", server=shown(settings), version=version_of(client))
            return client


def _callbacks(scope: Scope, settings: NatsSettings, closing: asyncio.Event) -> dict[str, Any]:
    async def disconnected() -> None:
        if not (scope.stopping.is_set() or closing.is_set()):
            scope.health.block("nats", f"NATS at {shown(settings)} is disconnected; reconnecting")

    async def reconnected() -> None:
        scope.health.stats.count("nats_reconnects")
        scope.health.unblock("nats")

    async def failed(error: Exception) -> None:
        if not scope.stopping.is_set():
            log.warning("nats_error", error=type(error).__name__, reason=str(error))

    return {"disconnected_cb": disconnected, "reconnected_cb": reconnected, "error_cb": failed}
