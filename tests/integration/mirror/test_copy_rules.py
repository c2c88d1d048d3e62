"""Database sinks whose copies differ from the source: other names, fewer columns, rows that stay
when they are deleted, a row for each change.

Real suite, real targets. The oracle is SQL of the source and of each target's own client.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.postgres.quoting import quote_name
from headrace.testing.process import Outcome, command
from headrace.testing.seeded import WITH_SNAPSHOTS, World, world
from headrace.testing.servers import SessionServers
from tests.support.database_copies import KINDS, DatabaseCopy, Rows, database_copy
from tests.support.sinks import sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

UNTIL_S = 120.0


@async_fixture(scope="module", loop_scope="module", name="world")
async def the_world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    settings = {
        "HEADRACE_SNAPSHOT_SPARK": "large",
        "HEADRACE_CHUNK_ROWS_MAX": "10",
        "HEADRACE_CATALOG_INTERVAL_S": "1",
    }
    folder = tmp_path_factory.mktemp("world")
    async with world(session_servers, folder, "", WITH_SNAPSHOTS, settings) as made:
        yield made


@async_fixture(params=KINDS, loop_scope="module", name="copy")
async def the_copy(
    world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[DatabaseCopy]:
    async with database_copy(request.param, world, tmp_path, request) as made:
        yield made


def quoted(copy: DatabaseCopy, name: str) -> str:
    """A name in the target's SQL."""
    if copy.kind == "mariadb":
        return "`" + name.replace("`", "``") + "`"
    return quote_name(name)


def named(copy: DatabaseCopy, schema: str, name: str) -> str:
    """A table in the target's SQL."""
    if copy.kind in {"postgresql", "duckdb"}:
        return f"{quoted(copy, schema)}.{quoted(copy, name)}"
    return quoted(copy, name if schema == "public" else f"{schema}.{name}")


async def read(copy: DatabaseCopy, sql: str) -> Rows:
    found = await asyncio.to_thread(copy.read, sql)
    return sorted(tuple(None if v is None else str(v) for v in row) for row in found)


async def source(world: World, sql: str) -> Rows:
    found = await world.source.fetch(sql)
    return sorted(tuple(None if v is None else str(v) for v in row) for row in found)


async def until(ask: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Wait until the answer is this."""
    deadline = time.monotonic() + UNTIL_S
    while True:
        try:
            found = await ask()
        except Exception as error:  # noqa: BLE001  # a table that is not there yet, by any client
            found = repr(error)
        if found == wanted:
            return
        assert time.monotonic() < deadline, f"{found} is not {wanted}"
        await asyncio.sleep(0.2)


async def equals(world: World, copy: DatabaseCopy, sql: tuple[str, str]) -> None:
    """Wait until a query of the source and one of the target give the same rows."""
    deadline = time.monotonic() + UNTIL_S
    found: Any = None
    while time.monotonic() < deadline:
        try:
            found = await read(copy, sql[1])
        except Exception as error:  # noqa: BLE001  # a table that is not there yet, by any client
            found = repr(error)
        if found == (wanted := await source(world, sql[0])):
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"{copy.kind}: {found} is not {wanted}")


def configured(folder: Path, name: str, copy: DatabaseCopy, tables: str, *more: str) -> Path:
    config = folder / "headrace.toml"
    head = f'[[sink]]\nname = "{name}"\nto = "{copy.to}"\ntables = {json.dumps([tables])}\n'
    config.write_text(head + "\n".join(more) + "\n")
    return config


async def sinks(world: World, config: Path, *words: str) -> Outcome:
    return await command(world.environment, "sinks", *words, "--config", str(config), "--json")


async def verified(world: World, copy: DatabaseCopy, *words: str) -> Sequence[dict[str, Any]]:
    """The verdicts of `headrace verify`."""
    words = ("--to", copy.to, "--json", *words)
    done = await command(world.environment, "verify", *words, timeout_s=UNTIL_S)
    assert done.code in {0, 3}, done.err
    return [json.loads(line) for line in done.out.splitlines()]


async def created(world: World, schema: str, name: str, body: str) -> str:
    """Create a table at the source; returns its SQL name."""
    table = f"{quote_name(schema)}.{quote_name(name)}"
    await world.source.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_name(schema)}")
    await world.source.execute(f"CREATE TABLE {table} ({body})")
    return table


# Names and columns.


async def test_tables_have_the_name_and_the_columns_of_the_rules_through_ddl(
    world: World, copy: DatabaseCopy, tmp_path: Path
) -> None:
    schema = f'Sch "{copy.kind[:3]}'
    body = '"I.d" int PRIMARY KEY, n int, "Te""xt" text, secret text, other int'
    table = await created(world, schema, 'Or"ders.1', body)
    await world.source.execute(
        f"INSERT INTO {table} SELECT g, g, 'x', 'hidden', g FROM generate_series(1, 25) g"
    )
    template = """destination = 'shop ü."{table}"'"""
    columns = """columns = ["I.d", "n", 'Te"xt', "more", "later"]"""
    config = configured(tmp_path, "ruled", copy, f"{schema}.*", template, columns)
    here = named(copy, "shop ü", '"Or"ders.1"')
    text = quoted(copy, 'Te"xt')
    both = (
        f'SELECT "I.d", n, "Te""xt" FROM {table}',
        f"SELECT {quoted(copy, 'I.d')}, n, {text} FROM {here}",
    )
    async with sink_process(world.environment, config, "ruled") as process:
        await equals(world, copy, both)
        # Of a column that is left out, neither changes nor DDL reach the target.
        await world.source.execute(
            f"UPDATE {table} SET n = -n WHERE n % 2 = 0; DELETE FROM {table} WHERE n = 3;"
            f"UPDATE {table} SET secret = 'changed'; ALTER TABLE {table} RENAME secret TO secret2;"
            f"ALTER TABLE {table} ADD third text DEFAULT 'x'; ALTER TABLE {table} DROP other;"
            f"ALTER TABLE {table} ADD more int DEFAULT 7;"
            f"INSERT INTO {table} VALUES (99, 9, '', 'hidden', 'x', 1)"
        )
        every = tuple(sql.replace(" FROM", ", more FROM") for sql in both)
        await equals(world, copy, (every[0], every[1]))
        assert process.output.count("event=bootstrap_loading") == 1
        with pytest.raises(Exception, match=r"(?i)secret"):
            await read(copy, f"SELECT secret2 FROM {here}")
        # Copied again, and replaced; and a column that was left out gets a name of `columns`.
        await world.source.execute(f"ALTER TABLE {table} ALTER n TYPE bigint USING n * 1000")
        await equals(world, copy, (every[0], every[1]))
        await world.source.execute(f"ALTER TABLE {table} RENAME third TO later")
        await world.source.execute(f"UPDATE {table} SET n = 0 WHERE n = 9000")
        every = tuple(sql.replace(" FROM", ", later FROM") for sql in every)
        await equals(world, copy, (every[0], every[1]))
        (verdict,) = await verified(world, copy)
        assert verdict["equal"], verdict
        assert verdict["rows"] == 25
        # A difference of a kept column is found.
        key = quoted(copy, "I.d")
        await asyncio.to_thread(copy.read, f"UPDATE {here} SET more = 8 WHERE {key} = 99")
        (verdict,) = await verified(world, copy)
        assert [one["columns"] for one in verdict["found"]] == [["more"]]
        await asyncio.to_thread(copy.read, f"UPDATE {here} SET more = 1 WHERE {key} = 99")
        later = f"{quote_name(schema)}.later"
        await world.source.execute(f"ALTER TABLE {table} RENAME TO later")
        moved = named(copy, "shop ü", '"later"')
        await equals(world, copy, (f"SELECT n FROM {later}", f"SELECT n FROM {moved}"))
        assert await _fails(copy, f"SELECT 1 FROM {here}")
        assert await process.stop() == 0
    await _moved_by_another_template(world, copy, tmp_path, schema, columns)


async def _moved_by_another_template(
    world: World, copy: DatabaseCopy, tmp_path: Path, schema: str, columns: str
) -> None:
    """It leaves nothing under the old name."""
    later = f"{quote_name(schema)}.later"
    moved = named(copy, "shop ü", '"later"')
    bad = configured(tmp_path, "ruled", copy, f"{schema}.*", 'destination = "{schema}.t.{table}"')
    done = await sinks(world, bad, "plan")
    assert "headrace.toml:5: sink.destination" in done.err
    assert "more than one dot" in done.err
    template = 'destination = "{table} of {schema}"'
    config = configured(tmp_path, "ruled", copy, f"{schema}.*", template, columns)
    (planned,) = json.loads((await sinks(world, config, "plan")).out)
    assert planned["tables"] == [f"{schema}.later as public.later of {schema} without secret2"]
    third = named(copy, "public", f"later of {schema}")
    async with sink_process(world.environment, config, "ruled") as process:
        await equals(world, copy, (f"SELECT n FROM {later}", f"SELECT n FROM {third}"))
        assert await _fails(copy, f"SELECT 1 FROM {moved}")
        await world.source.execute(f"DROP TABLE {later}")
        await until(lambda: _fails(copy, f"SELECT 1 FROM {third}"), wanted=True)
        assert await process.stop() == 0


async def _fails(copy: DatabaseCopy, sql: str) -> bool:
    """Whether the target says that it has no such table."""
    try:
        await read(copy, sql)
    except Exception as error:  # noqa: BLE001  # by any client
        return "exist" in str(error).lower() or "no such table" in str(error)
    return False


# The same code for all targets.
@pytest.mark.parametrize("copy", ["mariadb"], indirect=True)
async def test_what_a_rule_can_not_do_is_refused_by_name(
    world: World, copy: DatabaseCopy, tmp_path: Path
) -> None:
    kind = copy.kind
    one, other = f"one_{kind}", f"other_{kind}"
    for schema in (one, other):
        await created(world, schema, f"same_{kind}", "id int PRIMARY KEY")
    await created(world, "public", f"keyless_{kind}", "id int PRIMARY KEY, n int")
    await created(world, "public", f"alone_{kind}", "id int PRIMARY KEY")
    await world.source.execute(f"INSERT INTO alone_{kind} VALUES (1)")
    await world.suite.logged("schema-publisher", f"alone_{kind}", UNTIL_S)
    template = 'destination = "all.{table}"'
    config = configured(tmp_path, "refused", copy, f"*.same_{kind}", template)
    both = f"{one}.same_{kind} and {other}.same_{kind} would both be all.same_{kind}"
    done = await sinks(world, config, "plan")
    assert (done.code, both in done.err) == (1, True), done.err
    columns = f'columns = {{keyless_{kind} = ["n"]}}'
    keyless = f"`columns` leaves out id of public.keyless_{kind}"
    config = configured(tmp_path, "refused", copy, f"*.keyless_{kind}", columns)
    done = await sinks(world, config, "plan")
    assert (done.code, keyless in done.err) == (1, True), done.err
    config = configured(tmp_path, "refused", copy, f"*.*_{kind}", template, columns)
    async with sink_process(world.environment, config, "refused") as process:
        alone = named(copy, "all", f"alone_{kind}")
        await until(lambda: read(copy, f"SELECT id FROM {alone}"), [("1",)])

        async def refused() -> set[str]:
            parked = (line for line in process.output.splitlines() if "event=table_parked" in line)
            return {line.partition("table=")[2].split()[0].strip('"') for line in parked}

        tokens = {f"{one}=2Fsame_{kind}", f"{other}=2Fsame_{kind}", f"keyless_{kind}"}
        await until(refused, tokens)
        assert await process.stop() == 0
    reasons = {one["table"]: one["reason"] for one in await verified(world, copy)}
    assert reasons.pop(f"alone_{kind}") is None
    assert keyless in reasons.pop(f"keyless_{kind}")
    assert all(f"would both be all.same_{kind}" in reason for reason in reasons.values())


# Rows that stay.

POINTS = ("mirror.committed:3", "mirror.before_commit:3", "mirror.committed:4")
# The source's own list of deleted rows.
DELETED = """
CREATE TABLE {0}_gone (id int PRIMARY KEY);
CREATE FUNCTION {0}_keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' THEN DELETE FROM {0}_gone WHERE id = NEW.id; RETURN NEW; END IF;
    IF TG_OP = 'TRUNCATE' THEN INSERT INTO {0}_gone SELECT id FROM {0}; RETURN NULL; END IF;
    INSERT INTO {0}_gone VALUES (OLD.id); RETURN OLD;
END $$;
CREATE TRIGGER one BEFORE INSERT OR DELETE ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_keep();
CREATE TRIGGER two BEFORE TRUNCATE ON {0} EXECUTE FUNCTION {0}_keep();
"""


# All targets do the same with hand-written events (test_kept_rows.py).
@pytest.mark.parametrize("copy", ["postgresql"], indirect=True)
async def test_deleted_rows_stay_exactly_once_through_kills_and_a_new_copy(
    world: World, copy: DatabaseCopy, tmp_path: Path
) -> None:
    table = f"soft_{copy.kind}"
    await world.source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, secret text)")
    await world.source.execute(DELETED.format(table))
    await world.source.execute(f"INSERT INTO {table} SELECT g, g FROM generate_series(1, 35) g")
    rules = ('destination = "soft.{table}"', 'columns = ["id", "n"]', 'soft_delete = "Gone At"')
    clash = configured(tmp_path, "soft", copy, table, *rules[:1], 'soft_delete = "secret"')
    await world.suite.logged("schema-publisher", table, UNTIL_S)
    done = await sinks(world, clash, "plan")
    assert f"public.{table} has a column secret at the source" in done.err
    config = configured(tmp_path, "soft", copy, table, *rules)
    there, mark = named(copy, "soft", table), quoted(copy, "Gone At")
    rows = (f"SELECT id, n FROM {table}", f"SELECT id, n FROM {there} WHERE {mark} IS NULL")
    gone = (f"SELECT id FROM {table}_gone", f"SELECT id FROM {there} WHERE {mark} IS NOT NULL")
    async with sink_process(world.environment, config, "soft") as process:
        await equals(world, copy, rows)
        assert await process.stop() == 0
    for number, point in enumerate(POINTS):
        async with sink_process(world.environment, config, "soft", HEADRACE_FAILPOINT=point) as one:
            # Changes for as many commits as it takes.
            while one.running:
                await world.source.execute(
                    f"DELETE FROM {table} WHERE id % 5 = {number};"
                    f"UPDATE {table} SET n = n + 1, id = id + 100 WHERE id = 10 + {number};"
                    f"DELETE FROM {table} WHERE id > 100;"
                    f"INSERT INTO {table} SELECT g, -g FROM generate_series(1, 12) g "
                    "ON CONFLICT DO NOTHING"
                )
                await asyncio.sleep(0.3)
            assert await one.exit_code() < 0, one.output[-3000:]
    async with sink_process(world.environment, config, "soft") as process:
        await equals(world, copy, rows)
        await equals(world, copy, gone)
        # Copied again while rows are deleted.
        await world.source.execute(f"ALTER TABLE {table} ALTER n TYPE bigint USING n * 10")
        await world.source.execute(f"DELETE FROM {table} WHERE id = 20")
        await equals(world, copy, rows)
        await equals(world, copy, gone)
        await world.source.execute(f"TRUNCATE {table}; INSERT INTO {table} VALUES (3, 3)")
        await equals(world, copy, rows)
        await equals(world, copy, gone)
        (verdict,) = await verified(world, copy)
        count = len(await source(world, gone[0]))
        assert (verdict["equal"], verdict["rows"], verdict["marked"]) == (True, 1, count)
        # A repair writes a row in the place of a marked one, and leaves the other marked ones.
        await asyncio.to_thread(copy.read, f"UPDATE {there} SET {mark} = now() WHERE id = 3")
        (verdict,) = await verified(world, copy, "--repair")
        assert (verdict["equal"], verdict["repaired"], verdict["marked"]) == (True, 1, count)
        await equals(world, copy, gone)
        assert "row_missing" not in process.output
        assert await process.stop() == 0


# The source's own log, in the order of its changes.
LOGGED = """
CREATE TABLE {0}_log (number bigserial, operation text, id int);
CREATE FUNCTION {0}_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO {0}_log (operation, id) VALUES (TG_OP, COALESCE(NEW.id, OLD.id)); RETURN NULL;
END $$;
CREATE FUNCTION {0}_empty() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO {0}_log (operation) VALUES (TG_OP); RETURN NULL;
END $$;
CREATE TRIGGER one AFTER INSERT OR UPDATE OR DELETE ON {0} FOR EACH ROW
    EXECUTE FUNCTION {0}_note();
CREATE TRIGGER two AFTER TRUNCATE ON {0} EXECUTE FUNCTION {0}_empty();
"""


# All targets do the same with hand-written events (test_kept_rows.py).
@pytest.mark.parametrize("copy", ["mariadb"], indirect=True)
async def test_each_change_is_one_row_through_kills(
    world: World, copy: DatabaseCopy, tmp_path: Path
) -> None:
    table = f"logged_{copy.kind}"
    await world.source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
    await world.source.execute(f"INSERT INTO {table} SELECT g, g FROM generate_series(1, 25) g")
    config = configured(tmp_path, "logged", copy, table, "history = true")
    there = named(copy, "public", table)
    async with sink_process(world.environment, config, "logged") as process:
        copied = f"SELECT id FROM {there} WHERE headrace_operation = 'SNAPSHOT'"
        await equals(world, copy, (f"SELECT id FROM {table}", copied))
        await world.source.execute(LOGGED.format(table))
        await process.logged("event=following", UNTIL_S)
        assert await process.stop() == 0
    for point in POINTS:
        async with sink_process(
            world.environment, config, "logged", HEADRACE_FAILPOINT=point
        ) as one:
            while one.running:
                await world.source.execute(
                    f"DELETE FROM {table} WHERE id < 4; UPDATE {table} SET n = n + 1 WHERE id < 9;"
                    f"INSERT INTO {table} SELECT g, 0 FROM generate_series(1, 3) g"
                )
                await asyncio.sleep(0.3)
            assert await one.exit_code() < 0, one.output[-3000:]
    async with sink_process(world.environment, config, "logged") as process:
        await world.source.execute(f"TRUNCATE {table}; INSERT INTO {table} VALUES (7, 7)")
        order = "row_number() OVER (ORDER BY headrace_lsn, headrace_seq)"
        found = (
            f"SELECT {order}, headrace_operation, id FROM {there} "
            "WHERE headrace_operation <> 'SNAPSHOT'"
        )
        number = "row_number() OVER (ORDER BY number)"
        await equals(world, copy, (f"SELECT {number}, operation, id FROM {table}_log", found))
        positions = f"SELECT count(*) - count(DISTINCT headrace_lsn, headrace_seq) FROM {there}"
        positions += " WHERE headrace_operation <> 'SNAPSHOT' OR headrace_committed_at IS NOT NULL"
        assert await read(copy, positions) == [("0",)]
        done = await command(world.environment, "verify", "--to", copy.to, timeout_s=UNTIL_S)
        assert (done.code, "is a history of changes" in done.err) == (1, True), done.err
        assert await process.stop() == 0
