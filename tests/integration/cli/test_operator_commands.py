"""The operator's commands make, check, show and remove what the suite needs; a refusal is one line
and its remedy.
"""

from __future__ import annotations

import asyncio
import json
import re

import asyncpg
import nats
import psycopg
import pytest

from headrace.bus import participation, subjects
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.jetstream.provisioning import declared
from headrace.jetstream.state import Cell
from headrace.postgres.replication import ReplicationConnection
from headrace.settings import PostgresSettings, StreamSettings
from headrace.testing.database import Database, fresh_database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import Outcome, command, service
from tests.support.doctor import checks

NOWHERE = "nats://127.0.0.1:1"
NATS_USERS = {
    "authorization": {
        "users": [
            {"user": "admin", "password": "a"},
            {
                "user": "mute",
                "password": "m",
                "permissions": {"publish": ["other.>"], "subscribe": ["_INBOX.>"]},
            },
            {
                "user": "reader",
                "password": "r",
                "permissions": {"publish": ["$JS.API.>", "headrace.>"], "subscribe": [">"]},
            },
        ]
    }
}


def environment(
    server: EmbeddedPostgres, database: str, nats_url: str, names: Names, **more: str
) -> dict[str, str]:
    return {
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(server.port),
        "PG_DB": database,
        "POSTGRES_BRIDGE_USER": "headrace",
        "NATS_URL": nats_url,
        **names.settings,
        **more,
    }


@pytest.fixture
async def settings(database: Database, server: EmbeddedNats, names: Names) -> dict[str, str]:
    return environment(database.server, database.name, server.url, names)


def one_line(outcome: Outcome, said: str, remedy: str) -> None:
    assert outcome.code == 1, outcome
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("headrace: ")
    assert said in lines[0]
    assert remedy in lines[0]


async def slots(database: Database, names: Names) -> int:
    return int(
        await database.fetchval(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", names.slot
        )
    )


async def test_init_makes_everything_once_and_a_repetition_makes_nothing(
    database: Database, server: EmbeddedNats, settings: dict[str, str], names: Names
) -> None:
    await database.execute(
        'CREATE SCHEMA app; CREATE TABLE app."Odd Name" (id int PRIMARY KEY); CREATE TABLE plain ()'
    )
    await database.execute('CREATE SCHEMA "my.app"; CREATE TABLE "my.app"."a,b" ()')
    first = await command(settings, "init", "--tables", 'app.Odd Name, plain, "my.app"."a,b"')
    assert first.code == 0, first
    # The publication, the slot, and what NATS holds.
    everything = 2 + len(declared(StreamSettings()))
    assert first.out.count("✓") == everything
    assert "\x1b" not in first.out
    assert await slots(database, names) == 1
    tables = await database.fetch(
        "SELECT tablename FROM pg_publication_tables WHERE pubname = $1", names.publication
    )
    assert {row["tablename"] for row in tables} == {"Odd Name", "plain", "a,b"}
    client = await nats.connect(server.url)
    subjects = (await client.jetstream().stream_info("CDC")).config.subjects
    await client.close()
    assert subjects == ["cdc.>"]
    second = await command(settings, "init")
    assert (second.code, second.out.count("✓"), second.out.count("already exists")) == (
        0,
        0,
        everything,
    )


async def test_init_refuses_a_table_that_another_slots_suite_delivers(
    database: Database, settings: dict[str, str], names: Names
) -> None:
    """Both would give a change one id, and JetStream would keep it once, of one of them."""
    await database.execute("CREATE TABLE shared (id int PRIMARY KEY)")
    assert (await command(settings, "init")).code == 0
    async with service({**settings, "HEADRACE_HTTP_PORT": "0"}, "schema-publisher") as first:
        await first.logs("schema_published")
        assert await first.stop() == 0
    other = {
        **settings,
        "HEADRACE_SLOT": f"{names.slot}_b",
        "HEADRACE_PUB": f"{names.publication}_b",
    }
    told = f"table public.shared is already delivered by the suite of slot {names.slot}"
    one_line(await command(other, "init"), told, "Remove it from one of the publications")
    count = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    assert await database.fetchval(count, other["HEADRACE_SLOT"]) == 0
    await database.execute(f"SELECT pg_drop_replication_slot('{names.slot}')")
    assert (await command(other, "init")).code == 0, (
        "what is left of a suite that is gone stands in nobody's way"
    )


async def test_tail_of_a_table_that_is_not_there_says_which_ones_are_and_waits_for_it(
    database: Database, settings: dict[str, str]
) -> None:
    await database.execute("CREATE TABLE known (id int PRIMARY KEY)")
    assert (await command(settings, "init")).code == 0
    quick = {**settings, "HEADRACE_HTTP_PORT": "0", "HEADRACE_CATALOG_INTERVAL_S": "0.2"}
    async with (
        service(quick, "schema-publisher") as schemas,
        service(quick, "wal-reader"),
        service(quick, "publisher") as publisher,
    ):
        await schemas.logs("schema_published")
        await publisher.logs("epoch_joined")
        words = "headrace: no table unknown is published (there are: known). Waiting for it; Ctrl-C ends."
        async with service(settings, "tail", "unknown", "--json", "--limit", "2") as tail:
            await tail.logs(words)
            await database.execute(
                "CREATE TABLE unknown (id int PRIMARY KEY); INSERT INTO unknown VALUES (7)"
            )
            assert await tail.ended() == 0
        assert [json.loads(line)["operation"] for line in tail.out] == ["SCHEMA", "INSERT"]


async def test_the_doctor_fails_before_init_and_passes_after_it(
    database: Database, settings: dict[str, str]
) -> None:
    await database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    code, found = await checks(settings)
    assert code == 1
    missing = {name for name, check in found.items() if check["state"] == "fail"}
    assert {"publication", "slot", "stream CDC", "bucket schemas"} <= missing
    assert all(check["remedy"] for check in found.values() if check["state"] != "ok")
    await command(settings, "init")
    code, found = await checks(settings)
    assert (code, [name for name, check in found.items() if check["state"] == "fail"]) == (0, [])
    shown = await command(settings, "doctor")
    assert shown.code == 0
    assert "checks passed" in shown.out
    assert "\x1b" not in shown.out


async def test_the_doctor_names_tables_that_cannot_be_read_or_have_no_identity(
    database: Database, settings: dict[str, str], role: str
) -> None:
    await database.execute(
        "CREATE TABLE secret (id int PRIMARY KEY); CREATE TABLE keyless (id int)"
    )
    await database.execute(f"GRANT SELECT ON keyless TO {role}; ALTER ROLE {role} REPLICATION")
    await command(settings, "init")
    code, found = await checks({**settings, "POSTGRES_BRIDGE_USER": role})
    assert code == 1
    assert "secret" in found["SELECT"]["found"]
    assert "keyless" not in found["SELECT"]["found"]
    assert "GRANT SELECT ON public.secret" in found["SELECT"]["remedy"]
    assert (found["identity"]["state"], "keyless" in found["identity"]["found"]) == ("warn", True)


async def test_the_doctor_names_a_stream_that_loses_messages_and_one_that_keeps_too_many(
    settings: dict[str, str], own_nats: OwnNats, database: Database
) -> None:
    """A stream of its name that somebody made: JetStream removes what one consumer has read."""
    await database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    server = await own_nats()
    settings = {**settings, "NATS_URL": server.url}
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="CDC", subjects=["cdc.>"], retention="workqueue")
    await js.add_stream(name="INIT", subjects=["init.>"], retention="interest")
    await js.add_stream(name="SNAPSHOT_REQUESTS", subjects=["snapshot.request.>"])
    await client.close()
    await command(settings, "init")
    code, found = await checks(settings)
    assert code == 1
    cdc = found["stream CDC"]
    assert (cdc["state"], "retention workqueue" in cdc["found"]) == ("fail", True)
    assert "nats stream rm CDC" in cdc["remedy"]
    init = found["stream INIT"]
    assert "retention interest" in init["found"]
    assert init["remedy"] == "Change it: nats stream edit INIT --retention limits."
    requests = found["stream SNAPSHOT_REQUESTS"]
    assert "retention limits: JetStream keeps requests" in requests["found"]


@pytest.mark.parametrize("lost", ["replaced", "shorter"])
async def test_the_doctor_names_a_stream_that_lacks_what_the_publisher_stored(
    settings: dict[str, str], own_nats: OwnNats, database: Database, names: Names, lost: str
) -> None:
    await database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    server = await own_nats()
    settings = {**settings, "NATS_URL": server.url}
    await command(settings, "init")
    client = await nats.connect(server.url)
    js = client.jetstream()
    cell = Cell(await js.key_value("headrace_state"), f"progress.{names.slot}")
    stream = await js.stream_info("CDC")
    progress = {"stream_created": str(stream.created), "stream_seq": stream.state.last_seq}
    await cell.write(progress)
    _, found = await checks(settings)
    assert found["stream CDC"]["state"] == "ok"
    if lost == "replaced":
        await js.delete_stream("CDC")
        await js.add_stream(stream.config)
    else:
        await cell.write({**progress, "stream_seq": 1})
    await client.close()
    code, found = await checks(settings)
    assert (code, found["stream CDC"]["state"]) == (1, "fail")
    assert "since the publisher wrote to it" in found["stream CDC"]["found"]


async def test_the_doctor_names_tables_and_columns_that_are_not_utf8(
    postgres_server: EmbeddedPostgres, server: EmbeddedNats, names: Names
) -> None:
    options = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    async with fresh_database(postgres_server, names.other("ascii"), options) as database:
        settings = environment(postgres_server, database.name, server.url, names)
        where = f"host=127.0.0.1 port={postgres_server.port} dbname={database.name} user=headrace"
        async with await psycopg.AsyncConnection.connect(where, autocommit=True) as connection:
            await connection.execute('CREATE TABLE "a\\x" (id int PRIMARY KEY, "é" text)'.encode())
            await command(settings, "init")
            code, found = await checks(settings)
            assert "names" not in found
            await connection.execute(b'CREATE TABLE "t\xe9" ("\xff" int PRIMARY KEY, v text)')
        code, found = await checks(settings)
    assert (code, found["names"]["state"]) == (1, "fail")
    assert found["names"]["found"] == r"not UTF-8: public.t\xe9, public.t\xe9.\xff"


async def test_the_doctor_warns_of_a_paused_suite(
    database: Database, settings: dict[str, str]
) -> None:
    await database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    await command(settings, "init")
    _, found = await checks(settings)
    assert found["pause"]["state"] == "ok"
    await command(settings, "pause", "--reason", "a migration")
    code, found = await checks(settings)
    assert (code, found["pause"]["state"], found["pause"]["remedy"]) == (
        0,
        "warn",
        "headrace resume",
    )
    assert "a migration" in found["pause"]["found"]
    code, found = await checks({**settings, "HEADRACE_SHUTDOWN_TOKEN": "t" * 32})
    assert (code, found["pause"]["state"]) == (1, "fail")
    await command(settings, "resume")
    _, found = await checks(settings)
    assert found["pause"]["state"] == "ok"


async def test_the_doctor_warns_of_excluded_columns_that_match_none(
    database: Database, settings: dict[str, str]
) -> None:
    await database.execute("CREATE TABLE users (id int PRIMARY KEY, email text, name text)")
    settings = {**settings, "HEADRACE_EXCLUDE_COLUMNS": "users.email,public.users.name"}
    await command(settings, "init")
    _, found = await checks(settings)
    assert found["excluded columns"]["state"] == "ok"
    await database.execute("ALTER TABLE users RENAME email TO mail")
    code, found = await checks(settings)
    check = found["excluded columns"]
    assert (code, check["state"]) == (0, "warn")
    assert check["found"] == "no published table has users.email"
    assert "HEADRACE_EXCLUDE_COLUMNS" in check["remedy"]


async def test_teardown_asks_then_removes_slot_and_publication_and_leaves_what_others_made(
    database: Database, settings: dict[str, str], names: Names
) -> None:
    await database.execute(f"CREATE PUBLICATION {names.publication}")
    await command(settings, "init")
    one_line(await command(settings, "teardown"), f"drops replication slot {names.slot}", "--yes")
    assert await slots(database, names) == 1
    done = await command(settings, "teardown", "--yes")
    assert (done.code, await slots(database, names)) == (0, 0)
    assert "left: headrace init did not create it" in done.out
    assert await database.fetchval(
        "SELECT 1 FROM pg_publication WHERE pubname = $1", names.publication
    )


async def test_teardown_with_streams_removes_them_and_spares_a_foreign_one(
    server: EmbeddedNats, settings: dict[str, str], database: Database, names: Names
) -> None:
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="INIT", subjects=["init.>"])
    await command(settings, "init")
    done = await command(settings, "teardown", "--yes", "--streams")
    left = [info.config.name for info in await client.jetstream().streams_info()]
    await client.close()
    assert (done.code, left) == (0, ["INIT"])
    assert not await database.fetchval(
        "SELECT 1 FROM pg_publication WHERE pubname = $1", names.publication
    )


async def test_teardown_stops_a_running_suite_in_order_and_refuses_a_foreign_reader(
    database: Database, settings: dict[str, str], names: Names
) -> None:
    await command(settings, "init")
    where = PostgresSettings(
        host="127.0.0.1", port=database.port, database=database.name, user=database.user
    )
    foreign = await ReplicationConnection.open(where, "somebody else")
    await foreign.start(names.slot, names.publication)
    one_line(
        await command(settings, "teardown", "--yes"), "somebody else", "stop it yourself first"
    )
    foreign.close()
    async with service(settings, "wal-reader") as reader, service(settings, "publisher"):
        await reader.logs("epoch_opened")
        done = await command(settings, "teardown", "--yes")
        assert (done.code, await reader.ended()) == (0, 0), done
    assert await slots(database, names) == 0


async def test_load_keeps_its_rate_on_a_table_that_it_makes(
    database: Database, settings: dict[str, str]
) -> None:
    done = await command(
        settings, "load", "--rate", "100", "--seconds", "1", "--table", "Demo Rows"
    )
    assert done.code == 0, done
    [seconds] = re.findall(r"^100 changes on Demo Rows in ([\d.]+) s", done.out)
    # Not faster than it was asked to; how much slower is the machine's matter.
    assert float(seconds) >= 0.99
    assert len(done.out.splitlines()) == 1
    rows = await database.fetchval('SELECT count(*) FROM "Demo Rows"')
    inserts, deletes = (
        int(done.out.split(f" {kind}")[0].split()[-1]) for kind in ("inserts", "deletes")
    )
    assert rows == inserts - deletes > 0
    assert "headrace init" in done.err


async def test_status_shows_the_suite_and_says_where_to_look_when_there_is_none(
    settings: dict[str, str], server: EmbeddedNats, names: Names
) -> None:
    one_line(
        await command(settings, "status", "--port", "1"), "does not answer", "headrace telemetry"
    )
    async with service({**settings, "HEADRACE_STATS_INTERVAL_S": "0.1"}, "telemetry") as telemetry:
        await telemetry.readiness(200)
        client = await nats.connect(server.url)
        stats = participation.encode_stats(
            {"ready": 0, "wal_messages": 7}, {"postgres": "standing by"}
        )

        async def report() -> None:
            # Again and again, as a service does: who falls silent is shown as silent.
            while True:
                await client.publish(subjects.stats(names.slot, "wal-reader"), stats)
                await asyncio.sleep(0.1)

        reporting = asyncio.create_task(report(), name="reporting")
        url = await telemetry.url()
        shown = await command(settings, "status", "--url", url)
        machine = await command(settings, "status", "--url", url, "--json")
        reporting.cancel()
        await client.close()
    assert shown.code == 0
    assert "wal-reader" in shown.out
    assert "standing by" in shown.out
    assert "\x1b" not in shown.out
    assert json.loads(machine.out)["wal_messages_received"] == 7


async def test_a_server_with_wal_level_replica_is_refused_with_the_remedy(
    own_postgres: OwnPostgres, server: EmbeddedNats, names: Names
) -> None:
    postgres = await own_postgres(settings={"wal_level": "replica"})
    settings = environment(postgres, "postgres", server.url, names)
    one_line(await command(settings, "init"), "wal_level is replica", "wal_level = logical")
    code, found = await checks(settings)
    assert (code, found["wal_level"]["state"]) == (1, "fail")
    connection = await asyncpg.connect(postgres.dsn())
    assert await connection.fetchval("SELECT count(*) FROM pg_publication") == 0
    await connection.close()


async def test_a_role_without_replication_is_refused_with_the_remedy(
    database: Database, settings: dict[str, str], names: Names, role: str
) -> None:
    await database.execute(f"CREATE PUBLICATION {names.publication}")
    as_role = {**settings, "POSTGRES_BRIDGE_USER": role}
    one_line(await command(as_role, "init"), "replication", "REPLICATION")
    code, found = await checks(as_role)
    assert (code, found["replication"]["state"]) == (1, "fail")
    assert "REPLICATION" in found["replication"]["remedy"]


async def test_a_role_that_may_not_create_a_publication_is_told_what_a_superuser_must_run(
    settings: dict[str, str], names: Names, role: str
) -> None:
    outcome = await command({**settings, "POSTGRES_BRIDGE_USER": role}, "init")
    one_line(outcome, "may not", f'CREATE PUBLICATION "{names.publication}" FOR ALL TABLES')


async def test_a_role_that_may_not_write_or_drop_is_told_who_may(
    database: Database, settings: dict[str, str], names: Names, role: str
) -> None:
    as_role = {**settings, "POSTGRES_BRIDGE_USER": role}
    one_line(await command(as_role, "load", "--seconds", "0.1"), "permission denied", "--table")
    await command(settings, "init")
    one_line(await command(as_role, "teardown", "--yes"), "permission denied", "superuser")
    assert await slots(database, names) == 1


async def test_a_missing_table_or_a_slot_of_another_kind_is_refused_by_name(
    database: Database, settings: dict[str, str], names: Names
) -> None:
    one_line(
        await command(settings, "init", "--tables", "nowhere"), "--tables nowhere", "schema.table"
    )
    await database.execute("SELECT pg_create_physical_replication_slot($1)", names.slot)
    one_line(await command(settings, "init"), f"replication slot {names.slot} exists", "--slot")
    await database.execute("SELECT pg_drop_replication_slot($1)", names.slot)


async def test_servers_that_are_down_are_named_with_the_setting_that_says_where_they_are(
    settings: dict[str, str], database: Database, names: Names
) -> None:
    without_nats = {**settings, "NATS_URL": NOWHERE}
    one_line(await command(without_nats, "init"), NOWHERE, "NATS_URL")
    assert await slots(database, names) == 0, "a slot without a suite would hold WAL"
    without_postgres = {**settings, "PG_PORT": "1"}
    for arguments in (["init"], ["teardown", "--yes"], ["load", "--seconds", "0.1"]):
        one_line(await command(without_postgres, *arguments), "127.0.0.1:1", "PG_PORT")
    code, found = await checks({**without_postgres, "NATS_URL": NOWHERE})
    assert (code, found["connection"]["state"]) == (1, "fail")


async def test_a_nats_user_without_rights_is_refused_with_the_rights_that_it_lacks(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    server = await own_nats(config=NATS_USERS)
    settings = environment(database.server, database.name, server.url, names)
    as_user = {
        user: {**settings, "NATS_BRIDGE_USER": user, "NATS_BRIDGE_PASSWORD": password}
        for user, password in (("admin", "a"), ("mute", "m"), ("reader", "r"), ("nobody", "n"))
    }
    one_line(
        await command(as_user["nobody"], "init"),
        "refuses these credentials",
        "NATS_BRIDGE_PASSWORD",
    )
    one_line(await command(as_user["mute"], "init"), "CDC", "nats stream add CDC")
    assert (await command(as_user["admin"], "init")).code == 0
    code, found = await checks(as_user["mute"])
    assert (code, found["JetStream"]["state"], found["bus"]["state"]) == (1, "fail", "fail")
    assert "$JS.API" in found["JetStream"]["remedy"]
    code, found = await checks(as_user["reader"])
    assert (code, found["stream CDC"]["state"], found["publishing"]["state"]) == (1, "ok", "fail")
    assert "cdc.>" in found["publishing"]["remedy"]
    assert (await checks(as_user["admin"]))[0] == 0


async def test_a_server_without_room_for_the_stream_says_which_setting_is_too_large(
    settings: dict[str, str],
) -> None:
    outcome = await command({**settings, "HEADRACE_CDC_BYTES_MAX": str(1 << 50)}, "init")
    one_line(outcome, "no room for the 1048576.0 GiB", "HEADRACE_CDC_BYTES_MAX")


async def test_a_nats_server_without_jetstream_is_refused_with_the_remedy(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    server = await own_nats(config="jetstream: disabled")
    settings = environment(database.server, database.name, server.url, names)
    one_line(await command(settings, "init"), "JetStream", "-js")
    code, found = await checks(settings)
    assert (code, found["JetStream"]["state"]) == (1, "fail")
