"""`headrace backup init`: the store and the physical slot.

Promises: idempotent; another cluster's store is refused; the slot comes last, because from then on
PostgreSQL retains the log for it.
"""

from __future__ import annotations

import asyncio

from headrace.backup.errors import BackupError, ForeignStoreError
from headrace.backup.restored import RESTORED_FROM
from headrace.backup.store import BackupStore
from headrace.cli.backup.selection import located
from headrace.cli.session import Screen
from headrace.errors import HeadraceError
from headrace.postgres.connection import where
from headrace.postgres.physical import PhysicalConnection
from headrace.settings import Settings

# Older servers send base backups in another form, and don't say what a commit drops.
_VERSION_MIN = 15

# Role 10 is initdb's superuser under its present name, as which a restore logs in.
_FACTS = f"""
SELECT (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_segment_size'),
       (SELECT rolname FROM pg_catalog.pg_roles WHERE oid = 10),
       current_setting('wal_level'), current_setting('{RESTORED_FROM}', true)
"""  # noqa: S608  # a constant


async def run(settings: Settings, screen: Screen | None = None) -> None:
    """Create what is missing."""
    screen = screen or Screen()
    store = located(settings)
    connection = await PhysicalConnection.open(settings.postgres, "headrace backup init")
    try:
        screen.title(f"PostgreSQL {where(settings.postgres)}")
        await _store(connection, store, screen)
        await _slot(connection, settings.backup.slot, screen)
    finally:
        connection.close()


async def _store(connection: PhysicalConnection, store: BackupStore, screen: Screen) -> None:
    version = connection.server_version
    if version < _VERSION_MIN:
        raise BackupError(
            f"PostgreSQL {version} is too old for backups",
            remedy=f"Backups need PostgreSQL {_VERSION_MIN} or newer.",
        )
    identity = await connection.identify()
    segment_size, superuser, wal_level, restored_from = await connection.facts(_FACTS)
    if wal_level == "minimal":
        raise BackupError(
            "wal_level is minimal",
            remedy="Set wal_level = replica or logical in postgresql.conf and restart PostgreSQL.",
        )
    new = await asyncio.to_thread(
        store.create, identity.system_id, int(segment_size or 0), version, superuser or ""
    )
    # A restored cluster keeps its system identifier, so the check of the store's cluster can't tell
    # it from the former one.
    if restored_from == store.identity.store:
        raise ForeignStoreError(f"this cluster was restored from {store.url}")
    if new:
        screen.made("store", store.url, f"created for the cluster {identity.system_id}")
    else:
        screen.kept("store", store.url, "already exists")


async def _slot(connection: PhysicalConnection, name: str, screen: Screen) -> None:
    if await connection.physical_slot(name) is not None:
        screen.kept("slot", name, "already exists")
        return
    if await connection.slot(name) is not None:
        raise HeadraceError(
            f"replication slot {name} exists, and is a logical one",
            remedy="Name another in HEADRACE_BACKUP_SLOT.",
        )
    await connection.create_physical_slot(name)
    screen.made("slot", name, "created: PostgreSQL retains the log for it from now on")
