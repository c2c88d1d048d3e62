"""Workloads that people have, drained with `--delivery event` and held against pg_recvlogical on
the same backlog.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.bench import draining
from tests.bench.draining import Backlog
from tests.bench.machine import Machine
from tests.bench.result import Figure, beside

MODE = "event"


@dataclass(frozen=True, slots=True)
class Workload:
    """`write` is a statement or a DO block; in it `{units}` stands for how many of its units are
    written.
    """

    name: str
    explain: str
    setup: str
    tables: str
    write: str
    # At full size; what a quick run takes a tenth of.
    units: int
    events_per_unit: int = 1

    def measured(self, share: float) -> int:
        return max(1, int(self.units * share))


def _rows(width: int, units: int, per_transaction: int) -> Workload:
    table = f"bench_w{width}"
    body = f"SELECT g, repeat(md5(g::text), {width} / 32 + 1) FROM generate_series(i, i + {per_transaction} - 1) g"
    return Workload(
        f"w{width}",
        f"rows of {width:,} B",
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, body text)",
        table,
        f"FOR i IN 1..{{units}} * {per_transaction} BY {per_transaction} LOOP "
        f"INSERT INTO {table} {body}; COMMIT; END LOOP",
        units // per_transaction,
        per_transaction,
    )


_TPCB = ("branches", "tellers", "accounts", "history", "notes", "prices", "documents", "flags")
_TPCB_SETUP = """
CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88));
CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
CREATE TABLE notes (id bigserial PRIMARY KEY, note text);
CREATE TABLE prices (id bigserial PRIMARY KEY, a numeric, b numeric, c float8, d date, e uuid, f bool);
CREATE TABLE documents (id bigserial PRIMARY KEY, document jsonb);
CREATE TABLE flags (id int PRIMARY KEY, f1 bool, f2 bool, f3 smallint, f4 smallint, f5 int);
INSERT INTO branches SELECT g, 0, '' FROM generate_series(1, 10) g;
INSERT INTO tellers SELECT g, g, 0, '' FROM generate_series(1, 100) g;
INSERT INTO accounts SELECT g, 1, 0, '' FROM generate_series(1, 10000) g;
INSERT INTO flags SELECT g, true, false, 1, 2, 3 FROM generate_series(1, 100) g;
"""
_TPCB_WRITE = """
FOR i IN 1..{units} LOOP
  UPDATE accounts SET abalance = abalance + i % 1000 WHERE aid = 1 + i * 7919 % 10000;
  UPDATE tellers SET tbalance = tbalance + i % 1000 WHERE tid = 1 + i % 100;
  UPDATE branches SET bbalance = bbalance + i % 1000 WHERE bid = 1 + i % 10;
  INSERT INTO history VALUES (1 + i % 100, 1 + i % 10, 1 + i * 7919 % 10000, i % 1000, now());
  INSERT INTO notes (note) VALUES (repeat('note ', 20));
  INSERT INTO prices (a, b, c, d, e, f) VALUES (i * 1.25, i / 7.0, i, '2026-01-01', gen_random_uuid(), i % 2 = 0);
  INSERT INTO documents (document) VALUES (jsonb_build_object('id', i, 'tags', array['a', 'b'], 'n', i * 1.5));
  UPDATE flags SET f1 = NOT f1, f5 = i WHERE id = 1 + i % 100;
  COMMIT;
END LOOP"""
_DOCUMENT = """jsonb_build_object('id', g, 'name', 'name ' || g, 'tags', jsonb_build_array('a', 'b', g),
'address', jsonb_build_object('street', 'street ' || g, 'no', g % 100, 'geo', jsonb_build_array(g / 7.0, 1.5)),
'items', (SELECT jsonb_agg(jsonb_build_object('sku', x, 'price', x * 1.25, 'note', null)) FROM generate_series(1, 5) x))
"""

WORKLOADS = (
    Workload(
        "tpcb",
        "TPC-B, 8 tables of mixed width",
        _TPCB_SETUP,
        ", ".join(_TPCB),
        _TPCB_WRITE,
        20_000,
        8,
    ),
    _rows(100, 400_000, 1000),
    _rows(1000, 100_000, 100),
    _rows(10_000, 20_000, 100),
    Workload(
        "single",
        "single-row transactions",
        "CREATE TABLE bench_single (id bigint PRIMARY KEY, n int, name text)",
        "bench_single",
        (
            "FOR i IN 1..{units} LOOP INSERT INTO bench_single VALUES (i, i % 10, 'name ' || i); "
            "COMMIT; END LOOP"
        ),
        100_000,
    ),
    Workload(
        "million",
        "one transaction",
        "CREATE TABLE bench_million (id bigint PRIMARY KEY, n int, name text)",
        "bench_million",
        (
            "INSERT INTO bench_million SELECT g, g % 10, 'name ' || g FROM generate_series(1, "
            "{units}) g"
        ),
        1_000_000,
    ),
    Workload(
        "full",
        "updates, REPLICA IDENTITY FULL",
        "CREATE TABLE bench_full (id bigint PRIMARY KEY, n int, name text, at timestamptz DEFAULT "
        "now());"
        "ALTER TABLE bench_full REPLICA IDENTITY FULL;"
        "INSERT INTO bench_full SELECT g, 0, 'name ' || g FROM generate_series(1, 1000) g",
        "bench_full",
        "FOR i IN 1..{units} LOOP UPDATE bench_full SET n = i; COMMIT; END LOOP",
        100,
        1000,
    ),
    Workload(
        "jsonb",
        "jsonb-heavy rows",
        "CREATE TABLE bench_jsonb (id bigint PRIMARY KEY, document jsonb)",
        "bench_jsonb",
        f"FOR i IN 1..{{units}} LOOP INSERT INTO bench_jsonb SELECT i * 1000 + g, {_DOCUMENT} "
        "FROM generate_series(1, 1000) g; COMMIT; END LOOP",
        100,
        1000,
    ),
    Workload(
        "tables",
        "1,000 tables",
        "DO $do$ BEGIN FOR i IN 1..1000 LOOP "
        "EXECUTE format('CREATE TABLE bench_t%s (id bigint PRIMARY KEY, n int, name text)', i); "
        "END LOOP; END $do$",
        ", ".join(f"bench_t{number}" for number in range(1, 1001)),
        "FOR i IN 1..{units} LOOP EXECUTE format('INSERT INTO bench_t%s SELECT g, g, ''name '' || "
        "g "
        "FROM generate_series(1, 100) g', i); COMMIT; END LOOP",
        1000,
        100,
    ),
)


async def measure(
    machine: Machine, share: float, names: list[str], environment: dict[str, str]
) -> list[Figure]:
    """A figure for each workload; `share` of its full size."""
    wanted = [workload for workload in WORKLOADS if workload.name in names]
    return [await _measured(machine, workload, share, environment) for workload in wanted]


async def _measured(
    machine: Machine, workload: Workload, share: float, environment: dict[str, str]
) -> Figure:
    backlog = await _made(machine, workload, share)
    before = await draining.limit_s(machine, backlog)
    (drained,) = await draining.drain(machine, [backlog], MODE, environment)
    limit_s = (before + await draining.limit_s(machine, backlog)) / 2
    await draining.forget(machine, backlog)
    speed, limit = backlog.events / drained.seconds, backlog.events / limit_s
    made = beside(workload.explain, speed, "events/s", limit, "pg_recvlogical")
    return replace(
        made, cpu_us=drained.cpu_us, rss_mib=drained.rss_max_mib, rss_series=drained.rss_series
    )


async def _made(machine: Machine, workload: Workload, share: float) -> Backlog:
    units = workload.measured(share)
    await draining.prepare(machine, workload.name, workload.setup, workload.tables)
    write = workload.write.format(units=units)
    block = f"DO $write$ BEGIN {write}; END $write$" if write.lstrip().startswith("FOR ") else write
    async with machine.database.acquire() as session:
        await session.execute("SET synchronous_commit = off")
        await session.execute(block)
    return await draining.ended(machine, workload.name, units * workload.events_per_unit)
