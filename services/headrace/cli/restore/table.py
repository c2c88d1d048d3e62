"""`headrace restore --table`: one table of a moment into a live database, next to the others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.backup.dropped import find_drop
from headrace.backup.one_table import copy_table
from headrace.backup.plan import Planner, RestorePlan, RestoreTarget, TargetKind, format_time
from headrace.backup.recovery import RestoredServer
from headrace.backup.restore import owner, place_of
from headrace.backup.store import BackupStore
from headrace.backup.temporary import TemporaryFolder
from headrace.cli.restore import cluster
from headrace.cli.restore.moment import target
from headrace.cli.restore.wanted import RestoreMoment
from headrace.cli.terminal import Console
from headrace.contract.table_patterns import table_of
from headrace.embedded.account import unprivileged_account
from headrace.errors import SettingError
from headrace.settings import PostgresSettings, Settings
from headrace.terminal.text import counted

LIVE = "live"


@dataclass(frozen=True, slots=True)
class RestoredTable:
    """A table in a restored cluster, which is served until the block ends."""

    server: RestoredServer
    programs: Path
    # Schema and name.
    table: tuple[str, str]
    # The database of the settings, in which it is.
    database: str
    # Its moment.
    target: RestoreTarget


def planned(store: BackupStore, table: str, moment: RestoreMoment, console: Console) -> RestorePlan:
    """The plan for the table's moment, which is shown before anything is written."""
    # One look at the store for both: what it finds can't expire between.
    planner = Planner(store)
    plan = planner.plan(_target(store, planner, moment, *table_of(table), console))
    cluster.say(console, plan)
    return plan


@contextlib.contextmanager
def restored_table(
    settings: Settings,
    store: BackupStore,
    table: str,
    moment: RestoreMoment,
    work: Path | None,
    console: Console,
) -> Iterator[RestoredTable]:
    """Restore the cluster into a temporary folder, which is removed when the block ends; by the
    next restore if this one is killed.
    """
    plan = planned(store, table, moment, console)
    account = unprivileged_account()
    folder = TemporaryFolder(work)
    try:
        # PostgreSQL's account has to enter it.
        folder.path.chmod(0o711)
        place = place_of(folder.path / "cluster", owner(folder.path, account))
        programs = cluster.programs_of(settings, plan, place)
        database = database_of(settings.postgres)
        with cluster.recovered(settings, store, plan, place, console) as server:
            yield RestoredTable(server, programs, table_of(table), database, plan.target)
    finally:
        folder.remove()


def run(
    settings: Settings,
    store: BackupStore,
    table: str,
    moment: RestoreMoment,
    *,
    into: str,
    name: str | None,
    work: Path | None,
) -> None:
    """Copy the table out of the restored cluster, under a free name."""
    console = Console(stderr=True, soft_wrap=True)
    with restored_table(settings, store, table, moment, work, console) as found:
        copy(settings, found, name or f"{found.table[1]}_restored", into, console)


def copy(settings: Settings, found: RestoredTable, name: str, into: str, console: Console) -> None:
    """Copy it under a name that is free."""
    schema, former = found.table
    console.print(f"copying {schema}.{former}")
    copied = copy_table(
        found.server,
        found.programs,
        found.database,
        found.table,
        name,
        variables(settings.postgres, into),
    )
    for one in copied.left_out:
        print(f"left out: {one}")
    print(
        f"{copied.schema}.{copied.name}: {counted(copied.rows, 'row')} of {schema}.{former}, "
        f"{found.target}"
    )


def _target(
    store: BackupStore,
    planner: Planner,
    moment: RestoreMoment,
    schema: str,
    table: str,
    console: Console,
) -> RestoreTarget:
    if not moment.given:
        raise SettingError(
            "no moment is named",
            remedy="Name --before-drop, --at, --lsn, --xid or --before-xid.",
        )
    found = target(moment)
    if not moment.before_drop:
        return found
    drop = find_drop(store, planner, schema, table)
    time = format_time(drop.time_us)
    console.print(f"dropped {schema}.{table} at {time} by transaction {drop.xid}")
    return replace(found, kind=TargetKind.XID, value=drop.xid, inclusive=False)


def database_of(postgres: PostgresSettings) -> str:
    """The name of the database that the settings name."""
    return (
        postgres.database
        or os.environ.get("PGDATABASE")
        or postgres.user
        or os.environ.get("PGUSER")
        or "postgres"
    )


def variables(postgres: PostgresSettings, into: str) -> dict[str, str]:
    """libpq's variables of the live database, or of another one."""
    if into != LIVE:
        # psql takes a connection string as a database's name.
        return {"PGDATABASE": into}
    inherited = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    given = {
        "PGHOST": postgres.host,
        "PGPORT": postgres.port,
        "PGDATABASE": postgres.database,
        "PGUSER": postgres.user,
        "PGPASSWORD": postgres.password,
    }
    found = inherited | {name: str(value) for name, value in given.items() if value is not None}
    # Without a host, libpq takes a socket in a folder that depends on how it was built.
    found.setdefault("PGHOST", "localhost")
    return found
