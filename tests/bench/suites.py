"""Several slots as several suites: a single one, two at the same time into one stream, two with an
account each.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.embedded.nats import EmbeddedNats
from tests.bench import draining
from tests.bench.draining import Backlog, Drained
from tests.bench.machine import Machine
from tests.bench.result import Figure, beside

_ROWS_PER_TRANSACTION = 1000
_ACCOUNT = "SUITE{0}: {{ jetstream: enabled, users: [{{ user: suite{0}, password: suite{0} }}] }}"
_ACCOUNTS = f"accounts {{ {', '.join(_ACCOUNT.format(number) for number in (1, 2))} }}"


async def measure(machine: Machine, rows: int, environment: dict[str, str]) -> list[Figure]:
    """Events a second of two suites together, compared with a single suite, each on the same rows and the
    same server.
    """
    # The server reserves it for each account's stream.
    environment = {**environment, "HEADRACE_CDC_BYTES_MAX": str(1 << 31)}
    backlogs = [await _make(machine, f"suite{number}", rows // 2) for number in (1, 2)]
    server = EmbeddedNats(machine.folder / "nats-accounts", config=_ACCOUNTS)
    await server.start()
    try:
        apart = replace(machine, nats=server)
        urls = [server.url.replace("//", f"//suite{number}:suite{number}@") for number in (1, 2)]
        (alone,) = await draining.drain(apart, backlogs[:1], "event", environment, urls[:1])
        one_stream = await draining.drain(apart, backlogs, "event", environment, [urls[0]] * 2)
        accounts = await draining.drain(apart, backlogs, "event", environment, urls)
    finally:
        await server.stop("immediate")
    for backlog in backlogs:
        await draining.forget(machine, backlog)
    speed_alone = backlogs[0].events / alone.seconds
    return [
        _figure("two suites at once, one stream", backlogs, one_stream, speed_alone),
        _figure("two suites at once, an account each", backlogs, accounts, speed_alone),
    ]


def _figure(name: str, backlogs: list[Backlog], both: list[Drained], alone: float) -> Figure:
    speed = sum(backlog.events for backlog in backlogs) / max(one.seconds for one in both)
    made = beside(name, speed, "events/s", alone, "one suite")
    return replace(made, cpu_us=both[0].cpu_us, rss_mib=both[0].rss_max_mib)


async def _make(machine: Machine, name: str, rows: int) -> Backlog:
    table = f"bench_{name}"
    await draining.prepare(
        machine, name, f"CREATE TABLE {table} (id bigint PRIMARY KEY, n int, name text)", table
    )
    await machine.database.execute(
        f"DO $do$ BEGIN FOR i IN 1..{rows} BY {_ROWS_PER_TRANSACTION} LOOP INSERT INTO {table} "
        f"SELECT g, g % 10, 'name ' || g FROM generate_series(i, i + {_ROWS_PER_TRANSACTION} - 1) "
        "g; "
        "COMMIT; END LOOP; END $do$"
    )
    return await draining.ended(machine, name, rows)
