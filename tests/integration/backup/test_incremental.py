"""An incremental backup is restored with those that it follows, and its server has the same rows."""

from __future__ import annotations

import json
import shutil

from headrace.backup.errors import DamagedError
from tests.support.time_machine import TimeMachine


async def test_a_chain_of_incremental_backups_is_restored_and_has_the_rows(
    machine: TimeMachine,
) -> None:
    await machine.execute("ALTER SYSTEM SET summarize_wal = on")
    await machine.execute("SELECT pg_reload_conf()")
    await machine.execute(
        "CREATE TABLE t AS SELECT n, md5(n::text) v FROM generate_series(1, 50000) n"
    )
    await machine.begin()
    labels = [await machine.backup()]
    for number in range(2):
        await machine.execute(f"UPDATE t SET v = 'x{number}' WHERE n % 100 = {number}")
        labels.append(await machine.backup("--incremental"))
    await machine.execute("DELETE FROM t WHERE n < 100")
    await machine.stored()
    listed = json.loads((await machine.run("backup", "ls", "--json")).out)
    assert [one["parent"] for one in listed] == [None, *labels[:2]]
    assert listed[1]["bytes"] < listed[0]["bytes"] / 2
    plan = await machine.run("restore", "--to", str(machine.room / "plan"), "--plan")
    assert " + ".join(labels) in plan.err
    assert await machine.restored_digests() == await machine.digests()
    shutil.rmtree(machine.store / "backups" / labels[1])
    refused = await machine.run("restore", "--to", str(machine.room / "x"), code=1)
    assert f"follows {labels[1]}, which is missing" in refused.err
    assert DamagedError.remedy in refused.err
