"""A source of snapshots that a test reads without a responder."""

from __future__ import annotations

from headrace.embedded.nats import EmbeddedNats
from headrace.settings import Settings
from headrace.settings.connections import NatsSettings, PostgresSettings
from headrace.settings.source import SourceSettings
from headrace.testing.database import Database


def settings_between(database: Database, server: EmbeddedNats) -> Settings:
    """Settings whose publication is `p`."""
    return Settings(
        postgres=PostgresSettings("127.0.0.1", database.port, database.name, database.user),
        nats=NatsSettings(url=server.url),
        source=SourceSettings(slot="s", publication="p"),
    )


async def make_table(database: Database) -> None:
    """Make a published table `t` of several ranges."""
    await database.execute("CREATE TABLE t (id int, pad text); CREATE PUBLICATION p FOR TABLE t")
    await database.execute(
        "INSERT INTO t SELECT g, repeat('x', 300) FROM generate_series(1, 20000) g"
    )
