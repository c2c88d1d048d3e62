"""The source's side of a comparison: a table's rows in a snapshot of an exact LSN, in the forms that the stream has.

Uses what snapshots are made with, so that the same rows and columns are read: the publication's, without what the suite
leaves out. Never writes, and holds no WAL while it reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from headrace.contract.scalars import SESSION_SETTINGS
from headrace.contract.values import ArrayForm, Encoding, ValueOptions, converter
from headrace.errors import HeadraceError
from headrace.postgres.connection import connect
from headrace.postgres.replication import quote_literal, quote_name, refusal
from headrace.settings import Settings
from headrace.spark.session import HOLDER_SESSION
from headrace.spark.source import HeldSnapshot

READ_ROWS = 5000
_APPLICATION = "headrace verify"
_CONFIRMED = "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = $1"


class NoSlotError(HeadraceError):
    """The suite has no slot on this server."""

    remedy = "Verify against the database that the suite reads (PG_HOST, PG_DB, HEADRACE_SLOT), with the suite running."


async def confirmed_lsn(settings: Settings) -> int:
    """Every transaction that committed before it is in the stream."""
    connection = await connect(settings.postgres, _APPLICATION)
    try:
        lsn = await connection.fetchval(_CONFIRMED, settings.source.slot)
    finally:
        connection.terminate()
    if lsn is None:
        raise NoSlotError(f"there is no replication slot {settings.source.slot}")
    return int(lsn)


@contextlib.asynccontextmanager
async def _in_snapshot(settings: Settings, held: HeldSnapshot) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    given = settings.postgres
    session = {**SESSION_SETTINGS, **HOLDER_SESSION, "statement_timeout": "0"}
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
            await connection.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(held.exported)}".encode())
            yield connection
        finally:
            await connection.close()
    except psycopg.Error as error:
        raise refusal(error.sqlstate, error.diag.message_primary or str(error), given) from error


async def rows(
    settings: Settings, held: HeldSnapshot, names: Sequence[str], arrays: ArrayForm | None
) -> AsyncIterator[list[tuple[Any, ...]]]:
    """All rows of the table, some at a time, in the forms that an event has."""
    form = settings.format
    # What JSON would embed digit for digit is compared by its value, as MessagePack has it.
    options = ValueOptions(Encoding.MSGPACK, arrays or form.arrays, form.json_values)
    oids = {column.name: column.type_oid for column in held.columns}
    converters = [converter(oids[name], options, held.types.get) for name in names]
    async with _in_snapshot(settings, held) as connection:
        for storage in held.storages:
            listed = ", ".join(quote_name(name) for name in names)
            where = " AND ".join(f"({condition})" for condition in held.conditions) or "true"
            query = f"COPY (SELECT {listed} FROM ONLY {storage.relation} WHERE {where}) TO STDOUT"  # noqa: S608  # quoted
            async for some in copied(connection, query):
                yield [
                    tuple(None if v is None else make(v) for make, v in zip(converters, row, strict=True))
                    for row in some
                ]


async def copied(connection: psycopg.AsyncConnection[Any], query: str) -> AsyncIterator[list[tuple[bytes | None, ...]]]:
    """The rows of a COPY, as PostgreSQL prints their values."""
    some: list[tuple[bytes | None, ...]] = []
    async with connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
        async for row in copy.rows():
            some.append(tuple(None if value is None else value.encode() for value in row))
            if len(some) >= READ_ROWS:
                yield some
                some = []
    if some:
        yield some


def patient(settings: Settings, wait_s: float) -> Settings:
    """Settings under which a snapshot waits no longer than this for older transactions."""
    return replace(settings, snapshot=replace(settings.snapshot, slot_wait_s=wait_s))
