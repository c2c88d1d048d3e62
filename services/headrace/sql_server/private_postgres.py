"""The private PostgreSQL: the catalog, the roles and the analyzer of the SQL server, without rows.

It is an embedded one in the server's folder, or any other by its address; the database belongs to
the SQL server only. Clients reach it through the front only. Its ordinary roles can't create
anything, and can't call functions that run a text as SQL: such a text could read an empty table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql as composed
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import HeadraceError, SettingError
from headrace.settings import SqlSettings
from headrace.sql.private_server import READERS, embedded_server

GUARD: Final = "headrace_guard"
"""The schema of the foreign tables below the lake's tables."""

_VERSION_MIN: Final = 160000
_CONNECT_TIMEOUT_S: Final = 10
# They run a text as SQL, or keep data.
_REVOKED: Final = (
    "query_to_xml",
    "query_to_xmlschema",
    "query_to_xml_and_xmlschema",
    "cursor_to_xml",
    "cursor_to_xmlschema",
    "table_to_xml",
    "table_to_xmlschema",
    "table_to_xml_and_xmlschema",
    "schema_to_xml",
    "schema_to_xmlschema",
    "schema_to_xml_and_xmlschema",
    "database_to_xml",
    "database_to_xmlschema",
    "database_to_xml_and_xmlschema",
    "ts_stat",
    "ts_rewrite",
    "lo_creat",
    "lo_create",
    "lo_from_bytea",
    "lo_import",
    "lo_put",
    "lowrite",
    "pg_logical_emit_message",
)
SETTINGS: Final = (
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "bytea_output",
    "extra_float_digits",
    "client_encoding",
    "lc_monetary",
    "statement_timeout",
    "headrace.as_of",
)
"""The session's settings that `headrace.session_state` returns, in its columns' order."""
_SETTING_COLUMNS: Final = ", ".join(f"OUT s{place} text" for place in range(len(SETTINGS)))
_SETTING_VALUES: Final = " ".join(
    f"s{place} := coalesce(pg_catalog.current_setting('{name}', true), '');"
    for place, name in enumerate(SETTINGS)
)
_PREPARE: Final = (
    f"""DO $$ BEGIN CREATE ROLE {READERS} NOLOGIN;
    EXCEPTION WHEN duplicate_object THEN NULL; END $$""",
    "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    # Neither DO nor functions of users: the front doesn't see the statements in them.
    "REVOKE USAGE ON LANGUAGE plpgsql, sql FROM PUBLIC",
    f"""DO $$ DECLARE each regprocedure; BEGIN
    FOR each IN SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace
        AND proname IN ({", ".join(f"'{name}'" for name in _REVOKED)})
    LOOP EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', each); END LOOP; END $$""",
    f"CREATE SCHEMA IF NOT EXISTS {GUARD}",
    f"REVOKE ALL ON SCHEMA {GUARD} FROM PUBLIC",
    """DO $$ BEGIN CREATE FOREIGN DATA WRAPPER headrace;
    EXCEPTION WHEN duplicate_object THEN NULL; END $$""",
    "CREATE SERVER IF NOT EXISTS headrace FOREIGN DATA WRAPPER headrace",
    f"""CREATE TABLE IF NOT EXISTS {GUARD}.tables (
    relid oid PRIMARY KEY, source_relation bigint NOT NULL, columns jsonb NOT NULL)""",
    # Each cut updates its one row; a page that is mostly free takes the new versions.
    f"""CREATE TABLE IF NOT EXISTS {GUARD}.cut (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), number bigint NOT NULL, lsn pg_lsn NOT NULL)
    WITH (fillfactor = 10)""",
    # An earlier version made it unlogged, and a crash empties such a table. Only then: the lock
    # waits for clients that wait for a cut.
    f"""DO $$ BEGIN IF (SELECT relpersistence = 'u' FROM pg_class
        WHERE oid = '{GUARD}.cut'::regclass)
    THEN ALTER TABLE {GUARD}.cut SET LOGGED; END IF; END $$""",
    "CREATE SCHEMA IF NOT EXISTS headrace",
    "GRANT USAGE ON SCHEMA headrace TO PUBLIC",
    """CREATE OR REPLACE FUNCTION headrace.unreadable() RETURNS integer LANGUAGE plpgsql VOLATILE
    AS $$ BEGIN RAISE feature_not_supported USING
        MESSAGE = 'this way of reading a cursor over the lake is not supported',
        HINT = 'Use FETCH.'; END $$""",
    f"""CREATE OR REPLACE FUNCTION headrace.lsn() RETURNS pg_lsn LANGUAGE sql VOLATILE
    SECURITY DEFINER SET search_path = pg_catalog AS 'SELECT lsn FROM {GUARD}.cut'""",
    f"""CREATE OR REPLACE FUNCTION headrace.wait_for(lsn pg_lsn, timeout interval DEFAULT '10 s')
    RETURNS pg_lsn LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
    DECLARE
        reached pg_lsn;
        deadline timestamptz := clock_timestamp() + timeout;
    BEGIN
        LOOP
            SELECT c.lsn INTO reached FROM {GUARD}.cut c;
            IF reached >= wait_for.lsn THEN RETURN reached; END IF;
            IF current_setting('transaction_isolation') <> 'read committed' THEN
                RAISE invalid_transaction_state USING
                    MESSAGE = 'headrace.wait_for needs the isolation level read committed';
            END IF;
            IF clock_timestamp() >= deadline THEN
                RAISE query_canceled USING
                    MESSAGE = format('the lake is at %s and did not reach %s in %s',
                        coalesce(reached, '0/0'), wait_for.lsn, timeout),
                    HINT = 'Pass a longer timeout, or look at the lag of lake-writer.';
            END IF;
            PERFORM pg_sleep(0.02);
        END LOOP;
    END $$""",
    "DROP FUNCTION IF EXISTS headrace.session_facts(oid[], oid[], text[])",
    """CREATE OR REPLACE FUNCTION headrace.denied(relids oid[], roles oid[], columns text[])
    RETURNS SETOF text LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
    BEGIN
        RETURN QUERY
        SELECT CASE WHEN c.relkind = 'v' THEN 'view ' ELSE 'table ' END || c.relname::text
        FROM unnest(relids, roles, columns) AS need(relid, role, numbers)
        JOIN pg_class c ON c.oid = need.relid
        CROSS JOIN LATERAL (SELECT CASE WHEN need.role <> 0 THEN need.role ELSE
            (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user) END) AS reader(oid)
        WHERE NOT has_table_privilege(reader.oid, need.relid, 'SELECT') AND NOT CASE
            WHEN need.numbers = '' THEN has_any_column_privilege(reader.oid, need.relid, 'SELECT')
            ELSE (SELECT bool_and(has_column_privilege(reader.oid, need.relid, a.attnum, 'SELECT'))
                FROM unnest(string_to_array(need.numbers, ' ')::int2[]) AS wanted(number)
                JOIN pg_attribute a ON a.attrelid = need.relid AND NOT a.attisdropped
                    AND a.attnum > 0 AND wanted.number IN (0, a.attnum)) END;
    END $$""",
    # Every statement calls it. Its own search_path and a query in it would take most of its time,
    # so all names are qualified, and the query comes only if a right on a table is missing.
    f"""CREATE OR REPLACE FUNCTION headrace.session_state(
        relids oid[], roles oid[], columns text[], {_SETTING_COLUMNS}, OUT denied text)
    LANGUAGE plpgsql STABLE AS $$
    BEGIN
        {_SETTING_VALUES}
        FOR i IN 1 .. pg_catalog.cardinality(relids) LOOP
            CONTINUE WHEN CASE WHEN roles[i] OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                THEN pg_catalog.has_table_privilege(relids[i], 'SELECT')
                ELSE pg_catalog.has_table_privilege(roles[i], relids[i], 'SELECT') END;
            SELECT name INTO denied FROM headrace.denied(relids, roles, columns) AS name LIMIT 1;
            RETURN;
        END LOOP;
    END $$""",
)


@dataclass(frozen=True, slots=True)
class PrivateAddress:
    """The place of clients' own connections: a host or a folder of sockets, and a port."""

    host: str
    port: int


class PrivatePostgres:
    """The server and its database. Blocking."""

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        self._embedded: EmbeddedPostgres | None = None
        if settings.postgres is None:
            self._embedded = embedded_server(settings)

    def start(self) -> None:
        """Start the embedded server, create the database, and bring it to its form."""
        if self._embedded is not None:
            self._embedded.start_blocking()
            self._create_database()
        with self.connect() as connection:
            _check(connection)
            self._restrict(connection)
            # Each can be repeated: a start may have been interrupted anywhere.
            for statement in _PREPARE:
                connection.execute(statement)

    def zone_folder(self) -> Path:
        """The folder of the server's own time zones; it may be on another machine, or missing."""
        with self.connect() as connection:
            row = connection.execute(
                "SELECT setting FROM pg_config WHERE name = 'SHAREDIR'"
            ).fetchone()
        assert row is not None, "every PostgreSQL has this line"
        return Path(row[0]) / "timezone"

    def stop(self) -> None:
        """Stop the embedded server."""
        if self._embedded is not None:
            self._embedded.stop_blocking()

    @property
    def running(self) -> bool:
        """Whether the embedded server runs; another one's connections show it."""
        return self._embedded is None or self._embedded.running

    @property
    def admin_dsn(self) -> str:
        """The database's address for the front's own statements."""
        if self._embedded is not None:
            return self._embedded_dsn(self._settings.database)
        assert self._settings.postgres is not None, "one of the two"
        return self._settings.postgres

    @property
    def database(self) -> str:
        """The database that clients connect to."""
        if self._embedded is not None:
            return self._settings.database
        return str(conninfo_to_dict(self.admin_dsn).get("dbname") or self._settings.database)

    @property
    def address(self) -> PrivateAddress:
        """Where clients' connections go."""
        parts = conninfo_to_dict(self.admin_dsn)
        return PrivateAddress(str(parts.get("host") or "127.0.0.1"), int(parts.get("port") or 5432))

    @contextlib.contextmanager
    def connect(self) -> Iterator[psycopg.Connection]:
        """A connection of the front, as superuser."""
        with psycopg.connect(
            self.admin_dsn, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
        ) as connection:
            yield connection

    def _embedded_dsn(self, database: str) -> str:
        assert self._embedded is not None
        # It has no TLS, even if PGSSLMODE asks for it elsewhere.
        return make_conninfo(self._embedded.dsn(database), sslmode="disable")

    def _create_database(self) -> None:
        with psycopg.connect(self._embedded_dsn("postgres"), autocommit=True) as connection:
            name = self._settings.database
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name])
            if found.fetchone() is None:
                connection.execute(
                    composed.SQL(
                        "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'"
                    ).format(composed.Identifier(name))
                )
            # Clients have no business there, and nobody guards these databases.
            for other in ("postgres", "template1"):
                connection.execute(
                    composed.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(
                        composed.Identifier(other)
                    )
                )

    def _restrict(self, connection: psycopg.Connection) -> None:
        name = composed.Identifier(connection.info.dbname)
        # PUBLIC may create temporary tables otherwise, which would be state of a session.
        connection.execute(composed.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
        connection.execute(composed.SQL("GRANT CONNECT ON DATABASE {} TO PUBLIC").format(name))
        # The schema `headrace` is the front's: what an administrator creates belongs into `public`.
        connection.execute(
            composed.SQL("ALTER ROLE {} IN DATABASE {} SET search_path = public").format(
                composed.Identifier(connection.info.user), name
            )
        )
        # Trees would fill the server's log. The front reads severities in English.
        for setting, value in (("log_min_messages", "panic"), ("lc_messages", "C")):
            connection.execute(
                composed.SQL("ALTER DATABASE {} SET {} = {}").format(
                    name, composed.Identifier(setting), composed.Literal(value)
                )
            )


def _check(connection: psycopg.Connection) -> None:
    """Refuse a server whose answers could differ."""
    if connection.info.server_version < _VERSION_MIN:
        raise HeadraceError(
            f"the private PostgreSQL has version {connection.info.server_version // 10000}",
            remedy="Use PostgreSQL 16 or newer.",
        )
    row = connection.execute(
        "SELECT datcollate, datctype, pg_encoding_to_char(encoding), rolsuper "
        "FROM pg_database, pg_roles WHERE datname = current_database() AND rolname = current_user"
    ).fetchone()
    assert row is not None, "this database and this role exist"
    collate, ctype, encoding, is_superuser = row
    # DuckDB compares texts by their bytes; any other collation would give other answers.
    if {collate, ctype} - {"C", "POSIX"} or encoding != "UTF8":
        raise SettingError(
            f"the database of HEADRACE_SQL_POSTGRES has the collation {collate} and the encoding "
            f"{encoding}",
            remedy="Create it with TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'.",
        )
    if not is_superuser:
        raise SettingError(
            "the role of HEADRACE_SQL_POSTGRES is not a superuser",
            remedy="It creates a foreign-data wrapper, which only superusers may.",
        )
