"""The SQL server's private PostgreSQL, as the server and commands find it. Blocking."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from headrace.embedded.ports import LOOPBACK
from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres, kept_password
from headrace.errors import HeadraceError, SettingError
from headrace.settings import SqlSettings

READERS: Final = "headrace_reader"
"""The role whose members may read every table of the lake."""

_CONNECT_TIMEOUT_S: Final = 10
# For the front's own connections, and superusers.
_CONNECTIONS_MORE: Final = 10
_SETTINGS: Final = {
    # The analyzer's messages go to clients' connections, and to no log.
    "log_min_messages": "panic",
    "log_min_error_statement": "panic",
    "lc_messages": "C",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_replication_slots": "0",
    "shared_buffers": "16MB",
    "temp_file_limit": "1GB",
    "jit": "off",
}


class PrivateServerUnreachableError(HeadraceError):
    """The private PostgreSQL doesn't answer."""

    retry = True
    remedy = "Start `headrace sql-server`, or check HEADRACE_SQL_POSTGRES and HEADRACE_SQL_FOLDER."


def check_sql(settings: SqlSettings) -> None:
    """Refuse settings with which no client could connect."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise SettingError(
            "one of HEADRACE_SQL_TLS_CERT and HEADRACE_SQL_TLS_KEY is not set",
            remedy="Set both, or none for connections without TLS.",
        )
    if settings.tls_required and settings.tls_cert is None:
        raise SettingError(
            "HEADRACE_SQL_TLS_REQUIRED is set without a certificate",
            remedy="Set HEADRACE_SQL_TLS_CERT and HEADRACE_SQL_TLS_KEY.",
        )


def embedded_server(settings: SqlSettings) -> EmbeddedPostgres:
    """The embedded PostgreSQL in the SQL server's folder. It prefers the port of its last start."""
    folder = Path(settings.folder).absolute()
    connections = settings.connections_max + _CONNECTIONS_MORE
    return EmbeddedPostgres(
        folder / "postgres",
        settings=_SETTINGS | {"max_connections": str(connections)},
        password=kept_password(folder / "postgres-password"),
    )


def admin_dsn(settings: SqlSettings) -> str:
    """The database's address for a superuser's connection."""
    if settings.postgres is not None:
        return settings.postgres
    folder = Path(settings.folder).absolute()
    return make_conninfo(
        host=LOOPBACK,
        port=_port(folder),
        user=SUPERUSER,
        password=kept_password(folder / "postgres-password"),
        dbname=settings.database,
        # It has no TLS, even if PGSSLMODE asks for it elsewhere.
        sslmode="disable",
    )


@contextlib.contextmanager
def administration(settings: SqlSettings) -> Iterator[psycopg.Connection]:
    """A superuser's connection to a server that runs."""
    if settings.postgres is None and not _port(Path(settings.folder).absolute()):
        raise PrivateServerUnreachableError(f"{settings.folder} has no private PostgreSQL")
    try:
        connection = psycopg.connect(
            admin_dsn(settings), autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
        )
    except psycopg.OperationalError as error:
        # Its message names the address, and never the password.
        raise PrivateServerUnreachableError(
            f"the private PostgreSQL does not answer: {str(error).splitlines()[0]}"
        ) from error
    with connection:
        yield connection


def _port(folder: Path) -> int:
    """The port of the embedded server's last start; 0 before the first."""
    try:
        return int((folder / "postgres" / "port").read_text())
    except (OSError, ValueError):
        return 0
