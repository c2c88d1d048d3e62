"""Measures the SQL server, a PostgreSQL that has the same rows, and plain DuckDB: TPC-H, lookups by
key, a result of many rows, and cuts until clients see them.

The PostgreSQL is the oracle of every answer. It is also the source of the lake: its address is in
the SQL server's environment, and it logs all statements while the SQL server is measured.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import duckdb
import psycopg

from headrace.embedded.postgres import EmbeddedPostgres
from tests.bench import sql_rows
from tests.bench.machine import Family, Machine, family_cpu_s
from tests.bench.result import Figure, against, beside, plain, within
from tests.bench.sql_rows import CHANGED, TABLE, MeasuredLake
from tests.support.sql_front import SqlServer, sql_server

T = TypeVar("T")
# The answer of a query, as texts.
Rows = list[tuple[bytes | None, ...]]

ROUNDS = 3
# Its queries take most of the time.
POSTGRES_ROUNDS = 2
LOOKUPS = 2000
CUTS = 5
SERVER, POSTGRES, DUCKDB = "sql-server", "PostgreSQL", "plain DuckDB"
_LOG = ("log_statement = 'all'", "log_connections = 'all'", "log_replication_commands = on")
_WORK = (b"statement: ", b"execute ", b"connection received", b"replication command")
_SELECT = f"SELECT id, n, name, amount, at FROM {TABLE}"
_TIMEOUT = "10 min"
_BINARY = 1


@dataclass(frozen=True, slots=True)
class _Cost:
    """The time that some work took, and the processor time of its server."""

    seconds: float
    cpu_s: float


def _best(rounds: int, cpu_s: Callable[[], float], work: Callable[[], T]) -> tuple[_Cost, T]:
    """The fastest of some rounds, and what it gave."""
    found: list[tuple[_Cost, T]] = []
    for _ in range(rounds):
        began, cpu = time.monotonic(), cpu_s()
        answer = work()
        found.append((_Cost(time.monotonic() - began, cpu_s() - cpu), answer))
    return min(found, key=lambda each: each[0].seconds)


@dataclass(frozen=True, slots=True)
class _Measured:
    """One server's costs: of each query, of all rows by SELECT and by COPY, and of a lookup."""

    queries: Sequence[_Cost]
    answers: Sequence[Rows]
    results: Mapping[str, _Cost]
    lookup: _Cost

    @property
    def total(self) -> _Cost:
        """All queries."""
        seconds = sum(each.seconds for each in self.queries)
        return _Cost(seconds, sum(each.cpu_s for each in self.queries))


@dataclass(frozen=True, slots=True)
class _Client:
    """A client of either server."""

    psql: Path
    address: str
    cpu_s: Callable[[], float]
    rounds: int

    def measured(self, queries: Sequence[str], rows: int) -> _Measured:
        """Everything, on one connection."""
        with psycopg.connect(self.address, autocommit=True) as connection:
            found = [
                _best(self.rounds, self.cpu_s, lambda: _answer(connection, query))  # noqa: B023  # called in this round
                for query in queries
            ]
            lookup = self._lookup(connection, rows)
        forms = {"SELECT": _SELECT, "COPY": f"COPY ({_SELECT}) TO STDOUT"}
        results = {
            form: _best(self.rounds, self.cpu_s, lambda: self._psql(text))[0]  # noqa: B023  # called in this round
            for form, text in forms.items()
        }
        return _Measured(
            [cost for cost, _ in found], [_rows(result) for _, result in found], results, lookup
        )

    def _psql(self, text: str) -> None:
        command = [str(self.psql), self.address, "-qAtXc", text]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def _lookup(self, connection: psycopg.Connection, rows: int) -> _Cost:
        """The median of lookups by a prepared statement, one after another."""
        session = connection.pgconn
        session.prepare(b"lookup", f"{_SELECT} WHERE id = $1".encode(), [20])
        times = []
        cpu = self.cpu_s()
        for number in range(LOOKUPS):
            key = struct.pack("!q", number * 7919 % rows + 1)
            began = time.perf_counter()
            result = session.exec_prepared(b"lookup", [key], [_BINARY], _BINARY)
            times.append(time.perf_counter() - began)
            assert result.ntuples == 1, result.get_error_message()
        return _Cost(statistics.median(times), (self.cpu_s() - cpu) / LOOKUPS)


def _answer(connection: psycopg.Connection, query: str) -> psycopg.pq.abc.PGresult:
    result = connection.pgconn.exec_(query.encode())
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.get_error_message()
    return result


def _rows(result: psycopg.pq.abc.PGresult) -> Rows:
    """In any order: rows that are equal in all keys of ORDER BY come in any order."""
    columns = range(result.nfields)
    found = [
        tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)
    ]
    return sorted(found, key=repr)


async def measure(machine: Machine, scale: float, rows: int) -> list[Figure]:
    """TPC-H at a scale, and a table of so many rows."""
    folder = machine.folder / "sql"
    folder.mkdir()
    folder.chmod(0o711)
    return await asyncio.to_thread(_measure, machine, folder, scale, rows)


def _measure(machine: Machine, folder: Path, scale: float, rows: int) -> list[Figure]:
    alone = sql_rows.generated(scale)
    queries = sql_rows.queries(alone)
    psql = machine.binary("psql")
    with sql_rows.source(folder, alone, rows) as source:
        cpu = _family(source.pid)
        postgres = _Client(psql, source.dsn(), cpu, POSTGRES_ROUNDS).measured(queries, rows)
        settings = source.environment()
        with sql_server(_made(folder / "front"), **settings) as server:
            lake = MeasuredLake(server.lake)
            copied = lake.copy(source)
            with _logged(source) as work:
                fed = _fed(server, lake, copied)
                address = psycopg.conninfo.make_conninfo(**server.address())
                client = _Client(psql, address, _family(server.pid), ROUNDS)
                front = client.measured(queries, rows)
                cuts = list(_cuts(server, lake, rows))
    duck = [_native(alone, query) for query in queries]
    alone.close()
    return [
        *_totals(f"TPC-H at scale {scale:g}", front, postgres, duck),
        *_others(front, postgres, rows),
        fed,
        *cuts,
        plain("sql: statements on the source meanwhile", len(work), "", 0),
    ]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _family(pid: int) -> Callable[[], float]:
    return lambda: sum(family_cpu_s(pid).values())


def _native(database: duckdb.DuckDBPyConnection, query: str) -> _Cost:
    return _best(ROUNDS, time.process_time, lambda: database.execute(query).fetchall())[0]


@contextmanager
def _logged(server: EmbeddedPostgres) -> Iterator[list[bytes]]:
    """The server's log of every connection and statement in the block, afterwards."""
    log = server.folder / "server.log"
    work: list[bytes] = []
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for setting in _LOG:
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
        connection.execute("SELECT pg_reload_conf()")
        _probed(server, log, b"before")
        start = log.stat().st_size
        yield work
        end = log.stat().st_size
        # A log that had been turned off meanwhile would show nothing.
        _probed(server, log, b"after")
        with log.open("rb") as file:
            file.seek(start)
            lines = file.read(end - start).splitlines()
        work += [line for line in lines if any(each in line for each in _WORK)]
        connection.execute("ALTER SYSTEM RESET ALL")
        connection.execute("SELECT pg_reload_conf()")


def _probed(server: EmbeddedPostgres, log: Path, name: bytes) -> None:
    """Return when the log shows a statement, which may take a moment."""
    while b"SELECT 'headrace " + name not in log.read_bytes():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(b"SELECT 'headrace " + name + b"'")


def _fed(server: SqlServer, lake: MeasuredLake, rows: int) -> Figure:
    """The first cut: all rows."""
    cost, rss = _shown(server, lake)
    figure = plain("sql: feed of all tables", rows / cost.seconds, "rows/s")
    return replace(figure, cpu_us={SERVER: cost.cpu_s / rows * 1e6}, rss_mib=rss)


def _shown(server: SqlServer, lake: MeasuredLake) -> tuple[_Cost, dict[str, float]]:
    """A cut, from its commit until a client sees it."""
    family = Family(server.pid, SERVER)
    with server.connect() as connection:
        family.forget()
        lsn = lake.cut()
        began = time.monotonic()
        connection.execute("SELECT headrace.wait_for(%s::pg_lsn, %s)", [lsn, _TIMEOUT])
        seconds = time.monotonic() - began
    return _Cost(seconds, sum(family.cpu_s().values())), family.rss_max_mib()


def _cuts(server: SqlServer, lake: MeasuredLake, rows: int) -> Iterator[Figure]:
    costs = []
    for _ in range(CUTS):
        number = lake.change(rows)
        costs.append(_shown(server, lake)[0])
        seen = server.rows(f"SELECT count(*) FROM {TABLE} WHERE n = %s", [number])
        assert seen == [(min(CHANGED, rows),)], seen
    name = f"sql: cut of {CHANGED:,} changes until visible"
    cpu = statistics.median(each.cpu_s for each in costs)
    yield plain(f"{name}, CPU", cpu, "s", 0.3)
    yield plain(name, statistics.median(each.seconds for each in costs), "s")


def _totals(
    name: str, front: _Measured, postgres: _Measured, duck: Sequence[_Cost]
) -> Iterator[Figure]:
    """The 22 queries together, and each."""
    alone = _Cost(sum(each.seconds for each in duck), sum(each.cpu_s for each in duck))
    total = front.total
    cpu = {SERVER: total.cpu_s, POSTGRES: postgres.total.cpu_s, DUCKDB: alone.cpu_s}
    for limit, other, most in ((POSTGRES, postgres.total, 0.1), (DUCKDB, alone, 1.3)):
        title = f"sql: {name}, 22 queries"
        yield within(title, total.seconds, "s", other.seconds, limit, most)
        yield beside(f"{title}, CPU", total.cpu_s, "s", other.cpu_s, limit)
    wrong = [
        number
        for number, (one, other) in enumerate(zip(front.answers, postgres.answers, strict=True), 1)
        if one != other
    ]
    yield plain(f"sql: {name}, answers that differ {wrong or ''}", len(wrong), "", 0)
    each = zip(front.queries, postgres.queries, duck, strict=True)
    for number, (one, other, native) in enumerate(each, 1):
        cpu = {SERVER: one.cpu_s, POSTGRES: other.cpu_s, DUCKDB: native.cpu_s}
        spent = {server: seconds * 1e6 for server, seconds in cpu.items()}
        title = f"sql: {name}, query {number}"
        figure = beside(title, one.seconds, "s", native.seconds, DUCKDB)
        yield replace(figure, cpu_us=spent)
        yield beside(title, one.seconds, "s", other.seconds, POSTGRES)


def _others(front: _Measured, postgres: _Measured, rows: int) -> Iterator[Figure]:
    one, other = front.lookup, postgres.lookup
    title = "sql: lookup by key, prepared, p50"
    figure = within(title, one.seconds * 1e3, "ms", other.seconds * 1e3, POSTGRES, 3)
    yield replace(figure, cpu_us={SERVER: one.cpu_s * 1e6, POSTGRES: other.cpu_s * 1e6})
    for form, cost in front.results.items():
        limit = postgres.results[form]
        title = f"sql: {rows:,} rows of 5 columns to psql, {form}"
        figure = against(title, rows / cost.seconds, "rows/s", rows / limit.seconds, POSTGRES, 0.8)
        cpu = {SERVER: cost.cpu_s, POSTGRES: limit.cpu_s}
        yield replace(
            figure, cpu_us={server: seconds / rows * 1e6 for server, seconds in cpu.items()}
        )
