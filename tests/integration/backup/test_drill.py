"""A drill passes when the restored rows are the source's, and fails by name when they aren't."""

from __future__ import annotations

import asyncio
import json

from headrace.backup import drills, layout
from headrace.backup.programs import binaries, run
from headrace.backup.sealed import seal, unseal
from headrace.backup.store import BackupStore
from headrace.embedded.account import unprivileged_account
from headrace.testing.scrape import figures_when
from headrace.testing.suite import Suite
from tests.support.time_machine import SERVICE, TimeMachine

ROWS = """
CREATE TABLE orders (id int PRIMARY KEY, amount numeric, note text);
INSERT INTO orders SELECT n, n / 7.0, md5(n::text) FROM generate_series(1, 20000) n;
CREATE SCHEMA app;
CREATE TABLE app."Odd name" (at timestamptz, v float8);
INSERT INTO app."Odd name" SELECT now(), random() FROM generate_series(1, 500);
CREATE UNLOGGED TABLE scratch AS SELECT 1 AS n;
"""


async def test_a_drill_passes_while_rows_are_written_and_leaves_nothing(
    machine: TimeMachine,
) -> None:
    await machine.execute(ROWS)
    await machine.begin()
    await machine.backup()
    over = asyncio.Event()

    async def write() -> None:
        number = 20_000
        session = await machine.session()
        while not over.is_set():
            number += 1
            await session.execute(
                f"INSERT INTO orders VALUES ({number}, 1, 'x'); "
                f"UPDATE orders SET note = 'y' WHERE id = {number % 9 + 1}"
            )

    writing = asyncio.create_task(write(), name="writing")
    work = machine.room / "work"
    work.mkdir(mode=0o711)
    try:
        for _ in range(2):
            done = await machine.run("restore", "--drill", "--work", str(work))
            assert "drill passed: 2 tables compared" in done.out
    finally:
        over.set()
        await writing
    assert list(work.iterdir()) == []
    slots = await machine.value("SELECT count(*) FROM pg_replication_slots WHERE temporary")
    assert slots == 0
    said = json.loads((await machine.run("backup", "status", "--json")).out)
    assert said["last_drill"].startswith("passed at ")
    await machine.suite.kill(SERVICE)
    logs = machine.room / "logs"
    logs.mkdir()
    # It looks at the drills when it starts.
    async with Suite(machine.environment, logs, (SERVICE,)) as suite:
        await suite.logged(SERVICE, "receiving")
        found = await figures_when(
            suite.log(SERVICE), lambda now: now["headrace_backup_drill_failed"] == 0
        )
    assert 0 <= found["headrace_backup_drill_age_seconds"] < 600
    assert 0 <= found["headrace_backup_age_seconds"] < 600


async def without_checksums(machine: TimeMachine) -> None:
    account = unprivileged_account()
    program = binaries(None, machine.server.version, account) / "pg_checksums"
    await machine.server.stop()
    folder = machine.server.pgdata
    log = machine.room / "checksums.log"
    await asyncio.to_thread(
        lambda: run([program, "--disable", "-D", folder], log, account, timeout_s=60)
    )
    await machine.server.start()


async def test_a_drill_names_the_table_whose_row_was_changed_in_the_backup(
    machine: TimeMachine,
) -> None:
    await machine.execute(ROWS)
    # Otherwise PostgreSQL refuses the changed page, or the log brings the right one.
    await machine.execute("VACUUM FREEZE orders")
    await without_checksums(machine)
    await machine.begin()
    label = await machine.backup()
    await machine.stored()
    await machine.suite.stop(SERVICE)
    # Sealed again, so that only the rows tell: neither the digest nor the manifest is read.
    row = await machine.value("SELECT note FROM orders WHERE id = 77")
    store = BackupStore(machine.store.as_uri())
    changed = 0
    for path in machine.store.glob(f"backups/{label}/base.*.zst"):
        content = unseal(path.read_bytes(), path.name)
        number = int(path.name.split(".")[1])
        if row.encode() in content:
            changed += 1
            facts = {"label": label, "archive": "base", "number": number}
            path.write_bytes(seal(content.replace(row.encode(), b"changed".ljust(32)), facts))
    assert changed == 1
    await machine.suite.start(SERVICE)
    failed = await machine.run("restore", "--drill", code=3)
    assert "public.orders differs: 20000 rows in the source, 20000" in failed.out
    assert "drill failed" in failed.out
    store.identify()
    [outcome] = drills.listed(store.names(layout.DRILLS))
    assert not outcome.passed
    # A part that is missing: the drill can't even begin its comparison.
    for path in machine.store.glob(f"backups/{label}/base.*.zst"):
        path.unlink()
    broken = await machine.run("restore", "--drill", code=1)
    assert "base.000000.zst is missing" in broken.err
    said = json.loads((await machine.run("backup", "status", "--json")).out)
    assert said["last_drill"].startswith("failed at ")


async def test_a_drill_without_a_backup_fails_and_says_what_to_do(machine: TimeMachine) -> None:
    await machine.execute(ROWS)
    await machine.begin()
    failed = await machine.run("restore", "--drill", code=1)
    assert "headrace backup now" in failed.err
