"""`headrace sql users …`: who may log in to the SQL server.

Users are roles of the private PostgreSQL. Passwords are encrypted here, so the server never sees
them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import psycopg
from psycopg import sql as composed

from headrace.errors import HeadraceError
from headrace.settings import SqlSettings
from headrace.sql.private_server import READERS, administration

_PASSWORD_BYTES = 18
_USERS = """
SELECT rolname, rolcanlogin, pg_has_role(oid, %s, 'member') FROM pg_roles
WHERE NOT rolsuper AND rolname <> %s AND rolname !~ '^pg_' ORDER BY rolname"""


class UserError(HeadraceError):
    """A user can't be created, changed or removed."""


@dataclass(frozen=True, slots=True)
class User:
    """A role that can log in. `reads_all`: every table of the lake, also later ones."""

    name: str
    reads_all: bool


def add(settings: SqlSettings, name: str, password: str | None, *, all_tables: bool) -> str | None:
    """Create a user, or give one another password; returns a password that it generated."""
    made = secrets.token_urlsafe(_PASSWORD_BYTES) if password is None else None
    with administration(settings) as connection, connection.transaction():
        encrypted = connection.pgconn.encrypt_password(
            (password or made or "").encode(), name.encode(), b"scram-sha-256"
        )
        _refuse_superuser(connection, name)
        verb = "ALTER" if _exists(connection, name) else "CREATE"
        connection.execute(
            composed.SQL(
                "{} ROLE {} LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS "
                "PASSWORD {}"
            ).format(
                composed.SQL(verb), composed.Identifier(name), composed.Literal(encrypted.decode())
            )
        )
        change = "GRANT {} TO {}" if all_tables else "REVOKE {} FROM {}"
        connection.execute(
            composed.SQL(change).format(composed.Identifier(READERS), composed.Identifier(name))
        )
    return made


def users(settings: SqlSettings) -> list[User]:
    """All users."""
    with administration(settings) as connection:
        found = connection.execute(_USERS, [READERS, READERS]).fetchall()
    return [User(name, reads_all) for name, can_log_in, reads_all in found if can_log_in]


def drop(settings: SqlSettings, name: str) -> None:
    """Remove a user, and what was granted to it; its sessions end."""
    with administration(settings) as connection:
        _refuse_superuser(connection, name)
        if not _exists(connection, name):
            raise UserError(f"there is no user {name}", remedy="See `headrace sql users ls`.")
        role = composed.Identifier(name)
        # In this order: no session of it begins any more.
        connection.execute(composed.SQL("ALTER ROLE {} NOLOGIN").format(role))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name]
        )
        with connection.transaction():
            connection.execute(composed.SQL("DROP OWNED BY {}").format(role))
            connection.execute(composed.SQL("DROP ROLE {}").format(role))


def _exists(connection: psycopg.Connection, name: str) -> bool:
    row = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone()
    return row is not None


def _refuse_superuser(connection: psycopg.Connection, name: str) -> None:
    row = connection.execute(
        "SELECT rolsuper OR rolname = %s OR rolname ~ '^pg_' FROM pg_roles WHERE rolname = %s",
        [READERS, name],
    ).fetchone()
    if row is not None and row[0]:
        raise UserError(
            f"{name} is not a user of the SQL server",
            remedy="Choose another name: it is a role of the private PostgreSQL itself.",
        )
