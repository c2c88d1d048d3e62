"""Ordinary connections to PostgreSQL, and the meaning of its refusals.

Promises that every refusal a user can cause ends in one error with the remedy; temporary problems
(a server that starts, a network that is down) are marked `retry`. Never logs a password.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import asyncpg

from headrace.contract.values import SESSION_SETTINGS
from headrace.errors import HeadraceError
from headrace.settings import PostgresSettings


class PostgresError(HeadraceError):
    """PostgreSQL can't provide what the suite needs."""


class PostgresUnreachableError(PostgresError):
    """No PostgreSQL server answers, or it is starting or stopping."""

    retry = True
    remedy = "Start it, or set PG_HOST and PG_PORT to its address."


class PostgresRefusedError(PostgresError):
    """The server refuses the role, the password or the database."""


_REMEDIES = {
    "28P01": "Check POSTGRES_BRIDGE_USER and POSTGRES_BRIDGE_PASSWORD.",
    "28000": (
        "Check POSTGRES_BRIDGE_USER, and the server's pg_hba.conf for this role, "
        "database and address."
    ),
    "3D000": "Set PG_DB to a database that exists.",
    "42501": (
        "Grant the role REPLICATION and SELECT on the published tables (headrace doctor "
        "lists what is missing)."
    ),
    "53300": "Raise max_connections, or end idle connections.",
}
_CERTIFICATE_REMEDY = "Check PGSSLROOTCERT, PGSSLMODE, and the names in the server's certificate."
# asyncpg's errors for a connection that has become unusable, including one cut in the middle of a
# cancelled query.
BROKEN = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)
# SQLSTATEs of a server that starts, stops or is full, and of a lost connection.
_PASSING = frozenset(
    {"57P01", "57P02", "57P03", "08000", "08001", "08003", "08004", "08006", "53300"}
)


def where(settings: PostgresSettings) -> str:
    """The server's address for a log line."""
    host = settings.host or os.environ.get("PGHOST") or "localhost"
    return f"{host}:{settings.port or os.environ.get('PGPORT') or 5432}"


def explained(sqlstate: str | None, message: str, settings: PostgresSettings) -> PostgresError:
    """The suite's error for a refusal of the server."""
    # libpq's messages have several lines, and a log line or an error message has one.
    text = " ".join(message.split()).removeprefix("FATAL:").strip().removesuffix(".")
    # Without a SQLSTATE the cause is usually the network, TLS or a time-out.
    if sqlstate is None or sqlstate in _PASSING:
        remedy = _REMEDIES.get(sqlstate or "")
        if sqlstate is None and "certificate" in text.lower():
            remedy = _CERTIFICATE_REMEDY
        return PostgresUnreachableError(
            f"PostgreSQL at {where(settings)} is not available now: {text}", remedy=remedy
        )
    return PostgresRefusedError(
        f"PostgreSQL at {where(settings)}: {text}", remedy=_REMEDIES.get(sqlstate)
    )


def _check_channel_binding() -> None:
    """Refuse it instead of ignoring it: asyncpg can't bind a login to its TLS channel."""
    if os.environ.get("PGCHANNELBINDING") == "require":
        raise PostgresRefusedError(
            "PGCHANNELBINDING=require is not supported on ordinary connections",
            remedy=(
                "Use PGSSLMODE=verify-full, which verifies the server's certificate, and unset "
                "PGCHANNELBINDING."
            ),
        )


# Lifts limits that an administrator set for a role or database. Not in the startup packet: servers
# before 17 would refuse a connection that names transaction_timeout.
NO_TIME_LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {"idle_in_transaction_session_timeout": "0", "idle_session_timeout": "0"}
)
NO_TRANSACTION_TIMEOUT = "SET transaction_timeout = 0"
_TRANSACTION_TIMEOUT_SINCE = 17


def has_transaction_timeout(major_version: int) -> bool:
    """Whether this server can end a transaction for its age."""
    return major_version >= _TRANSACTION_TIMEOUT_SINCE


async def connect_lastingly(
    settings: PostgresSettings, application: str, **session: str
) -> asyncpg.Connection:
    """`connect`, for transactions that take as long as copying a table."""
    connection = await connect(settings, application, **{**NO_TIME_LIMITS, **session})
    if has_transaction_timeout(connection.get_server_version().major):
        await connection.execute(NO_TRANSACTION_TIMEOUT)
    return connection


async def check_login(settings: PostgresSettings, application: str) -> None:
    """Raise what keeps this process from connecting."""
    # Not `close`, which fails if the server ends meanwhile.
    (await connect(settings, application)).terminate()


async def connect(
    settings: PostgresSettings, application: str, **session: str
) -> asyncpg.Connection:
    """An ordinary connection, with the session settings that the contract's text forms assume."""
    _check_channel_binding()
    given: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "user": settings.user,
        "password": settings.password,
        "database": settings.database,
    }
    if settings.host is None and "PGHOST" not in os.environ and "PGSERVICE" not in os.environ:
        # asyncpg would look for Unix sockets first; docs/settings.md promises localhost.
        given["host"] = "localhost"
    try:
        return await asyncpg.connect(
            **{key: value for key, value in given.items() if value is not None},
            timeout=settings.connect_timeout_s,
            server_settings={"application_name": application, **SESSION_SETTINGS, **session},
        )
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error), settings) from error
    except (OSError, asyncio.IncompleteReadError, asyncpg.InterfaceError) as error:
        raise explained(None, str(error) or "it did not answer in time", settings) from error
