"""`headrace init`: creates the missing objects that the suite needs, and nothing else.

Promises: idempotent; never narrows or replaces existing objects; the slot comes last, because from
then on PostgreSQL retains WAL for it. Created objects carry a mark, so that teardown removes no
others.
"""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from headrace.cli.doctor import generated_columns
from headrace.cli.session import DENIED, Screen, kind_and_name, nats, postgres
from headrace.contract.events import decode
from headrace.contract.selection import Selection
from headrace.contract.subjects_and_ids import table_token
from headrace.contract.table_patterns import table_of
from headrace.errors import DecodeError, HeadraceError, SettingError
from headrace.jetstream.connection import shown
from headrace.jetstream.provisioning import declared, ensure
from headrace.postgres import catalog, ddl_trigger
from headrace.postgres.connection import PostgresRefusedError, where
from headrace.postgres.quoting import quote_literal, quote_name, quote_table
from headrace.postgres.replication_errors import ReplicationRefusedError
from headrace.settings import Settings

_DENIED_REMEDY = (
    "Have a superuser run: ALTER ROLE … REPLICATION, for the role in POSTGRES_BRIDGE_USER."
)

PUBLICATION_MARK = "made by headrace init"
_FAILOVER_SINCE = 170_000

_OTHER_SLOTS = """
SELECT slot_name::text AS name FROM pg_replication_slots
WHERE plugin = 'pgoutput' AND database = current_database() AND slot_name <> $1
"""
_FIND_TABLE = """
SELECT n.nspname AS schema, c.relname AS name, c.oid AS oid, c.relkind::text AS kind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) = ($1::text, $2::text) OR c.oid = $3::oid
ORDER BY (n.nspname, c.relname) = ($1::text, $2::text) DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class FoundTable:
    schema: str
    name: str
    oid: int

    @property
    def quoted(self) -> str:
        return quote_table(self.schema, self.name)


async def run(
    settings: Settings,
    tables: list[str],
    screen: Screen | None = None,
    *,
    with_ddl_trigger: bool = False,
) -> None:
    """Create the publication, the streams and buckets, the DDL trigger and the slot."""
    screen = screen or Screen()
    async with postgres(settings, "init", _DENIED_REMEDY) as session:
        screen.title(f"PostgreSQL {where(settings.postgres)}")
        await _require_logical(session)
        await _publication(session, settings, tables, screen)
        if with_ddl_trigger:
            await _ddl_trigger(session, screen)
        await _objects(settings, screen)
        # After the schemas bucket exists, and before the slot retains WAL.
        await _require_own_tables(session, settings)
        screen.title("Replication slot")
        await _slot(session, settings, screen)


async def _ddl_trigger(session: asyncpg.Connection, screen: Screen) -> None:
    there = await session.fetchval(ddl_trigger.INSTALLED, list(ddl_trigger.TRIGGERS))
    try:
        await session.execute(ddl_trigger.INSTALL)
    except asyncpg.PostgresError as error:
        if error.sqlstate != DENIED:
            raise
        raise PostgresRefusedError(
            f"this role may not create event triggers: {error.args[0]}",
            remedy=(
                "Run `headrace init --ddl-trigger` once as a superuser; the suite itself needs "
                "no such permission."
            ),
        ) from error
    what = ("event trigger", "headrace_ddl")
    if there:
        screen.kept(*what, "already exists")
    else:
        screen.made(*what, "created: reports drops, renames and rewrites in order")


async def _require_logical(session: asyncpg.Connection) -> None:
    level = await session.fetchval("SHOW wal_level")
    if level != "logical":
        raise ReplicationRefusedError(
            f"wal_level is {level}",
            remedy="Set wal_level = logical in postgresql.conf and restart PostgreSQL.",
        )


async def _publication(
    session: asyncpg.Connection, settings: Settings, tables: list[str], screen: Screen
) -> None:
    name = settings.source.publication
    wanted = [await _table(session, table) for table in tables]
    found = await session.fetchrow(
        "SELECT oid, puballtables FROM pg_publication WHERE pubname = $1", name
    )
    if found is None:
        # A publication that would break the application's updates is rolled back before anyone
        # notices it.
        async with session.transaction():
            await _new_publication(session, name, wanted)
        screen.made("publication", name, f"created for {_counted(wanted)}")
        return
    members = await session.fetch(
        "SELECT prrelid FROM pg_publication_rel WHERE prpubid = $1", found["oid"]
    )
    present = {row["prrelid"] for row in members}
    if found["puballtables"]:
        # It has every table, and PostgreSQL refuses to add one.
        missing = []
    else:
        missing = [table for table in wanted if table.oid not in present]
    if missing:
        added = ", ".join(table.quoted for table in missing)
        await _execute_ddl(session, f"ALTER PUBLICATION {quote_name(name)} ADD TABLE {added}")
        screen.made(
            "publication", name, f"extended by {', '.join(table.name for table in missing)}"
        )
    else:
        screen.kept("publication", name, "already exists")


async def _new_publication(
    session: asyncpg.Connection, name: str, wanted: list[FoundTable]
) -> None:
    """Create it such that no UPDATE of an application fails for it."""
    if wanted:
        scope = f"TABLE {', '.join(table.quoted for table in wanted)}"
    else:
        scope = "ALL TABLES"
    if await generated_columns.publishes(session):
        options = generated_columns.PUBLISHED
    else:
        options = ""
    await _execute_ddl(session, f"CREATE PUBLICATION {quote_name(name)} FOR {scope}{options}")
    mark = f"COMMENT ON PUBLICATION {quote_name(name)} IS {quote_literal(PUBLICATION_MARK)}"
    # `headrace teardown` removes only a publication with this mark.
    await _execute_ddl(session, mark)
    refused = await generated_columns.refused(session, name)
    if refused.names:
        raise HeadraceError(
            f"publication {name} was not created: PostgreSQL would refuse every UPDATE and DELETE "
            "of "
            f"{', '.join(refused.names)}, whose replica identity has a virtual generated column",
            remedy=refused.remedy(name),
        )


def _counted(tables: list[FoundTable]) -> str:
    if tables:
        return ", ".join(table.name for table in tables)
    return "all tables"


async def _table(session: asyncpg.Connection, text: str) -> FoundTable:
    """The table a user means: by its exact name first, then as SQL would read it."""
    schema, name = table_of(text)
    try:
        oid = await session.fetchval("SELECT to_regclass($1)::oid", text)
    except asyncpg.PostgresError:
        # Not a name in SQL's syntax; it may be an exact one all the same.
        oid = None
    row = await session.fetchrow(_FIND_TABLE, schema, name, oid)
    if row is None or row["kind"] not in {"r", "p"}:
        raise SettingError(
            f"--tables {text}: there is no such table", remedy="Name it as schema.table."
        )
    return FoundTable(row["schema"], row["name"], row["oid"])


async def _execute_ddl(session: asyncpg.Connection, statement: str) -> None:
    try:
        await session.execute(statement)
    except asyncpg.PostgresError as error:
        if error.sqlstate != DENIED:
            raise
        raise PostgresRefusedError(
            f"this role may not do that: {error.args[0]}",
            remedy=f"Have a superuser (or, with --tables, the tables' owner) run: {statement};",
        ) from error


async def _objects(settings: Settings, screen: Screen) -> None:
    async with nats(settings, "init") as (client, _):
        screen.title(f"NATS {shown(settings.nats)}")
        created = set(await ensure(client.jetstream(), settings.streams))
    for config in declared(settings.streams):
        what = kind_and_name(str(config.name))
        if config.name in created:
            screen.made(*what, "created")
        else:
            screen.kept(*what, "already exists")


async def _require_own_tables(session: asyncpg.Connection, settings: Settings) -> None:
    """Raise if another slot's suite on this NATS delivers a table: its changes would get the same
    ids twice.
    """
    slots = {row["name"] for row in await session.fetch(_OTHER_SLOTS, settings.source.slot)}
    if not slots:
        return
    chosen = settings.format
    selection = Selection(chosen.include, chosen.exclude, chosen.exclude_columns)
    published = await catalog.published_tables(session, settings.source.publication)
    async with nats(settings, "init") as (client, _):
        schemas = await client.jetstream().key_value(settings.streams.schemas)
        for table in catalog.delivered(published, selection):
            owner = await _owner(schemas, table_token(table.schema, table.name))
            if owner in slots:
                raise SettingError(
                    (
                        f"table {table.schema}.{table.name} is already delivered by the suite "
                        f"of slot {owner}"
                    ),
                    remedy=(
                        "Remove it from one of the publications, or drop that slot if its "
                        "suite no longer exists."
                    ),
                )


async def _owner(schemas: KeyValue, token: str) -> str | None:
    """The source of a table, from the schemas bucket."""
    try:
        source: str | None = decode((await schemas.get(token)).value or b"").get("source")
    except (KeyNotFoundError, DecodeError):
        return None
    return source


async def _slot(session: asyncpg.Connection, settings: Settings, screen: Screen) -> None:
    slot = settings.source.slot
    found = await session.fetchrow(
        (
            "SELECT plugin, database, current_database() AS here FROM pg_replication_slots WHERE "
            "slot_name = $1"
        ),
        slot,
    )
    if found is None:
        await _create_slot(session, settings)
        screen.made("slot", slot, "created: PostgreSQL retains WAL for it from now on")
    elif found["plugin"] != "pgoutput" or found["database"] != found["here"]:
        raise HeadraceError(
            (
                f"replication slot {slot} exists, with the plugin {found['plugin']} in database "
                f"{found['database']}"
            ),
            remedy="Name another with --slot.",
        )
    else:
        screen.kept("slot", slot, "already exists")


async def _create_slot(session: asyncpg.Connection, settings: Settings) -> None:
    slot = settings.source.slot
    failover = settings.source.failover
    if not failover:
        await session.fetchval("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
        return
    if int(await session.fetchval("SHOW server_version_num")) < _FAILOVER_SINCE:
        raise SettingError("HEADRACE_SLOT_FAILOVER needs PostgreSQL 17", remedy="Unset it.")
    await session.fetchval(
        "SELECT pg_create_logical_replication_slot($1, 'pgoutput', failover => true)", slot
    )
