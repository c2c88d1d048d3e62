"""`headrace restore --table`: one table of a moment into a live database, next to the others."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from headrace.backup.dropped import find_drop
from headrace.backup.one_table import copy_table
from headrace.backup.plan import Planner, RestoreTarget, TargetKind, format_time
from headrace.backup.restore import owner, place_of
from headrace.backup.store import BackupStore
from headrace.cli.restore import cluster
from headrace.cli.restore.moment import RestoreMoment, target
from headrace.cli.terminal import Console
from headrace.contract.table_patterns import table_of
from headrace.embedded.account import unprivileged_account
from headrace.errors import SettingError
from headrace.settings import PostgresSettings, Settings

LIVE = "live"


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
    """Restore the cluster into a temporary folder, and copy the table out of it."""
    console = Console(stderr=True, soft_wrap=True)
    schema, former = table_of(table)
    # One look at the store for both: what it finds can't expire between.
    planner = Planner(store)
    wanted = _target(store, planner, moment, schema, former, console)
    plan = planner.plan(wanted)
    cluster.say(console, plan)
    account = unprivileged_account()
    folder = Path(tempfile.mkdtemp(prefix="headrace-restore-", dir=work))
    # PostgreSQL's account has to enter it.
    folder.chmod(0o711)
    place = place_of(folder / "cluster", owner(folder, account))
    programs = cluster.programs_of(settings, plan, place)
    try:
        with cluster.recovered(settings, store, plan, place, console) as server:
            console.print(f"copying {schema}.{former}")
            copied = copy_table(
                server,
                programs,
                database_of(settings.postgres),
                (schema, former),
                name or f"{former}_restored",
                variables(settings.postgres, into),
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for one in copied.left_out:
        print(f"left out: {one}")
    print(
        f"{copied.schema}.{copied.name} has the {copied.rows} rows of {schema}.{former}, {wanted}"
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
    found.setdefault("PGHOST", "localhost")
    return found
