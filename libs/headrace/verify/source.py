"""The source's side of a comparison: a table's rows in a snapshot at an exact LSN, as PostgreSQL's
text.

Uses the code that copies snapshots, so that the same rows and columns are read: the publication's,
without those that the suite excludes. Never writes, and retains no WAL while it reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg

from headrace.errors import HeadraceError
from headrace.postgres.connection import (
    NO_TIME_LIMITS,
    NO_TRANSACTION_TIMEOUT,
    connect,
    has_transaction_timeout,
)
from headrace.postgres.quoting import quote_literal
from headrace.postgres.replication_errors import refusal
from headrace.settings import Settings
from headrace.spark.session import HOLDER_SESSION
from headrace.spark.source import HeldSnapshot
from headrace.verify.sql_rows import settle

_APPLICATION = "headrace verify"
_CONFIRMED = (
    "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = $1"
)


class NoSlotError(HeadraceError):
    """The suite has no slot on this server."""

    remedy = (
        "Verify against the database that the suite reads (PG_HOST, PG_DB, "
        "HEADRACE_SLOT), with the suite running."
    )


async def confirmed_lsn(settings: Settings) -> int:
    """Every transaction that committed before it is in the stream."""
    connection = await connect(settings.postgres, _APPLICATION)
    try:
        lsn = await connection.fetchval(_CONFIRMED, settings.source.slot)
    finally:
        connection.terminate()
    if lsn is None:
        raise NoSlotError(f"replication slot {settings.source.slot} does not exist")
    return int(lsn)


@contextlib.asynccontextmanager
async def in_snapshot(
    settings: Settings, held: HeldSnapshot
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection that sees the rows of that snapshot."""
    given = settings.postgres
    # The limit in HOLDER_SESSION is for catalog queries; to read a large table takes longer.
    session = {**NO_TIME_LIMITS, **HOLDER_SESSION, "statement_timeout": "0"}
    try:
        connection = await psycopg.AsyncConnection.connect(
            host=given.host,
            port=given.port,
            dbname=given.database,
            user=given.user,
            password=given.password,
            application_name=_APPLICATION,
            connect_timeout=given.connect_timeout_s,
            options=" ".join(f"-c {name}={value}" for name, value in session.items()),
        )
        try:
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await connection.set_read_only(True)
            if has_transaction_timeout(connection.info.server_version // 10_000):
                await connection.execute(NO_TRANSACTION_TIMEOUT)
            # A snapshot can only be imported before the transaction's first query; SET is none.
            await connection.execute(
                f"SET TRANSACTION SNAPSHOT {quote_literal(held.exported)}".encode()
            )
            await settle(connection)
            yield connection
        finally:
            await connection.close()
    except psycopg.Error as error:
        raise explained(error, settings) from error


def explained(error: psycopg.Error, settings: Settings) -> HeadraceError:
    """The suite's error for an error of the source's server."""
    return refusal(error.sqlstate, error.diag.message_primary or str(error), settings.postgres)


def patient(settings: Settings, wait_s: float) -> Settings:
    """Settings under which a snapshot waits no longer than this for older transactions."""
    return replace(settings, snapshot=replace(settings.snapshot, slot_wait_s=wait_s))
