"""A standby that streams from its primary, created with pg_basebackup.

Promises that the folder is new or empty before, and that the cluster, once promoted, refuses to
write to the primary's backup store.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from psycopg.conninfo import make_conninfo

from headrace.backup.programs import binaries, run
from headrace.backup.restore import append_settings, owner, place_of
from headrace.backup.restored import RESTORED_FROM
from headrace.backup.standbys import STREAMING
from headrace.backup.store import BackupStore
from headrace.backup.unpack import require_empty
from headrace.cli.restore.cluster import require_reachable
from headrace.cli.restore.table import LIVE, variables
from headrace.cli.terminal import Console
from headrace.embedded.account import unprivileged_account
from headrace.postgres.physical import PhysicalConnection
from headrace.settings import PostgresSettings, Settings

_COPY_TIMEOUT_S = 7 * 24 * 3600.0


def create(settings: Settings, store: BackupStore, folder: Path) -> None:
    """Copy the primary into the folder, as a standby with a slot of its name."""
    require_empty(folder)
    account = unprivileged_account()
    place = place_of(folder, owner(folder, account))
    require_empty(place.work)
    require_reachable(place)
    version = asyncio.run(_primary_version(settings.postgres, store))
    programs = binaries(settings.backup.binaries, version, place.account)
    name = STREAMING + secrets.token_hex(3)
    for path in (place.folder, place.work):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if place.account is not None:
            place.account.own(path)
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"copying the primary into {folder}")
    given = variables(settings.postgres, LIVE)
    # pg_basebackup connects without a database, and -R keeps the name for the standby.
    given.pop("PGDATABASE", None)
    run(
        [
            programs / "pg_basebackup",
            f"--pgdata={place.folder}",
            f"--dbname={make_conninfo(application_name=name)}",
            "--write-recovery-conf",
            "--create-slot",
            f"--slot={name}",
            "--wal-method=stream",
            "--checkpoint=fast",
            "--no-password",
        ],
        place.work / "basebackup.log",
        place.account,
        timeout_s=_COPY_TIMEOUT_S,
        environment=given,
    )
    append_settings(
        place.folder,
        {
            RESTORED_FROM: store.identity.store,
            # Settings of the primary that its copy must not keep.
            "archive_mode": "off",
            "synchronous_standby_names": "",
            "hot_standby": "on",
        },
    )
    if place.account is not None:
        place.account.own(place.folder)
    print(f"created a standby in {folder}, with the slot {name} on its primary")
    print(f"start it with:    {programs / 'pg_ctl'} -D {folder} start")
    print(f"promote it with:  headrace standby promote {folder}")
    print(f"without it:       drop its slot: SELECT pg_drop_replication_slot('{name}')")


async def _primary_version(postgres: PostgresSettings, store: BackupStore) -> int:
    connection = await PhysicalConnection.open(postgres, "headrace standby")
    try:
        identity = await connection.identify()
        # Another cluster's standby would remember a store that isn't its primary's.
        await asyncio.to_thread(store.check, identity.system_id)
        return connection.server_version
    finally:
        connection.close()
