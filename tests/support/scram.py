"""A role that logs in by SCRAM."""

from __future__ import annotations

from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres
from headrace.testing.database import Database
from headrace.testing.plugin import OwnPostgres


async def server_with_password(
    own_postgres: OwnPostgres, role: str, password: str, *setup: str
) -> EmbeddedPostgres:
    """Start a server where this role has a password, and run SQL for it."""
    server = await own_postgres(settings={"password_encryption": "scram-sha-256"})
    database = Database(server, "postgres")
    await database.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{password}'")
    for sql in setup:
        await database.execute(sql)
    (server.pgdata / "pg_hba.conf").write_text(
        f"host all {SUPERUSER} 127.0.0.1/32 trust\n"
        f"host all {role} 127.0.0.1/32 scram-sha-256\n"
        f"host replication {role} 127.0.0.1/32 scram-sha-256\n"
    )
    await database.execute("SELECT pg_reload_conf()")
    await database.close()
    return server
