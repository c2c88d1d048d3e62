"""The promises of the commands over a store: damage is found and named, whole chains expire, another
cluster's store is refused.
"""

from __future__ import annotations

import json
import random

from headrace.testing.plugin import OwnPostgres
from tests.support.time_machine import DATABASE, TimeMachine


async def test_one_flipped_bit_in_any_object_is_found_and_named(machine: TimeMachine) -> None:
    await machine.execute("CREATE TABLE t AS SELECT n FROM generate_series(1, 1000) n")
    await machine.begin()
    await machine.backup()
    await machine.stored()
    done = await machine.run("backup", "verify")
    assert done.out.splitlines()[-1].startswith("complete: 1 backups")
    await machine.suite.stop("wal-archiver")
    rng = random.Random(3)
    objects = [*machine.store.glob("backups/*/*.zst"), *machine.store.glob("wal/*.zst")]
    assert len(objects) > 3
    for path in [*rng.sample(objects, 3), max(objects, key=lambda one: one.stat().st_size)]:
        content = bytearray(path.read_bytes())
        place = rng.randrange(len(content))
        content[place] ^= 1 << rng.randrange(8)
        whole = path.read_bytes()
        path.write_bytes(content)
        done = await machine.run("backup", "verify", "--offline", "--json", code=3)
        findings = json.loads(done.out)["findings"]
        assert any(path.name in f"{one['name']} {one['what']}" for one in findings), findings
        path.write_bytes(whole)
    await machine.run("backup", "verify", "--offline")


async def test_a_segment_that_is_missing_is_named_and_what_needs_it_is_refused(
    machine: TimeMachine,
) -> None:
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    await machine.backup()
    for _ in range(3):
        await machine.execute("INSERT INTO t SELECT generate_series(1, 10000)")
        await machine.execute("SELECT pg_switch_wal()")
    lsn = await machine.value("SELECT pg_current_wal_insert_lsn()::text")
    await machine.stored()
    whole = sorted(machine.store.glob("wal/" + "?" * 24 + ".zst"))
    assert len(whole) > 3
    whole[-2].unlink()
    done = await machine.run("backup", "verify", code=3)
    assert "is missing" in done.out
    refused = await machine.run("restore", "--to", str(machine.room / "x"), "--lsn", lsn, code=1)
    assert "stored without a hole up to" in refused.err
    assert not (machine.room / "x").exists()


async def test_whole_chains_expire_and_what_is_left_can_be_restored(machine: TimeMachine) -> None:
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    labels = []
    for number in range(4):
        await machine.execute(f"INSERT INTO t VALUES ({number})")
        labels.append(await machine.backup(*(["--keep", "first"] if number == 0 else [])))
    await machine.stored()
    done = await machine.run("backup", "expire", "--keep", "2", "--json")
    assert json.loads(done.out)["backups"] == [labels[1]]
    listed = json.loads((await machine.run("backup", "ls", "--json")).out)
    assert [one["label"] for one in listed] == [labels[0], *labels[2:]]
    assert all(one["restorable"] for one in listed)
    assert await machine.restored_digests() == await machine.digests()


async def test_another_clusters_store_is_refused_and_not_changed(
    machine: TimeMachine, own_postgres: OwnPostgres
) -> None:
    await machine.begin()
    await machine.stored()
    await machine.suite.stop("wal-archiver")
    before = {path: path.read_bytes() for path in machine.store.rglob("*") if path.is_file()}
    other = await own_postgres()
    environment = other.environment(DATABASE)
    refused = await machine.run("backup", "init", code=1, **environment)
    assert "contains the backups of the cluster" in refused.err
    assert "HEADRACE_BACKUP_URL" in refused.err
    await machine.suite.start("wal-archiver", **environment)
    assert await machine.suite.exit_code("wal-archiver", 60) == 1
    assert "contains the backups of the cluster" in machine.suite.log("wal-archiver")
    assert {path: path.read_bytes() for path in before} == before
