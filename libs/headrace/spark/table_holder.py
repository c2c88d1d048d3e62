"""The process that holds a DataFrame's snapshot while Spark reads it: `python -m …table_holder
OPTIONS`.

Spark's planning worker ends before the tasks start, so the transaction needs its own process. It
ends when Spark does, and `hold_s` after its last reader: readers are visible in pg_stat_activity,
by application name.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.postgres.connection import connect
from headrace.spark.source import held_snapshot
from headrace.spark.table_plan import TableOptions, plan_of

POLL_S = 1.0
_READERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"


class NoSnapshotError(HeadraceError):
    """The snapshot of a DataFrame can't be taken."""


@dataclass(frozen=True, slots=True)
class Held:
    """A held snapshot for readers: the plan, and the application name to use."""

    packed_plan: bytes
    application: str


def start(options: TableOptions) -> Held:
    """A holder, with its snapshot taken."""
    application = f"headrace table {secrets.token_hex(6)}"
    request = options.request
    # Any user can read a process's arguments: credentials stay in the environment.
    given = [
        request.table,
        request.schema,
        options.publication,
        str(options.hold_s),
        application,
        str(_spark_pid()),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.spark.table_holder", *given],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    answer = json.loads(
        process.stdout.readline() or b'{"error": "the process that takes it ended"}'
    )
    process.stdout.close()
    # It outlives most processes that start it; a parent that stays must not keep its zombie.
    threading.Thread(target=process.wait, name="headrace-holder", daemon=True).start()
    if "error" in answer:
        raise NoSnapshotError(answer["error"])
    return Held(base64.b64decode(answer["plan"]), application)


def _spark_pid() -> int:
    """The JVM above this Python worker; the parent if there is none."""
    pid = os.getppid()
    while pid > 1:
        place = Path(f"/proc/{pid}")
        try:
            if (place / "comm").read_text().strip() == "java":
                return pid
            pid = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return os.getppid()


async def hold(options: TableOptions, application: str, spark_pid: int) -> None:
    settings = options.settings()
    async with held_snapshot(settings, options.request) as held:
        _answer({"plan": base64.b64encode(plan_of(held, settings).pack()).decode()})
        # Outside the transaction, in which pg_stat_activity would not change after its first
        # reading.
        watch = await connect(settings.postgres, "headrace table watch")
        last_seen = time.monotonic()
        while (
            _alive(spark_pid)
            and not held.lost.is_set()
            and time.monotonic() - last_seen < options.hold_s
        ):
            await asyncio.sleep(POLL_S)
            if await watch.fetchval(_READERS, application):
                last_seen = time.monotonic()
        watch.terminate()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _answer(body: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


def main() -> int:
    table, schema, publication, hold_s, application, spark_pid = sys.argv[1:]
    options = TableOptions.parse(
        {"table": table, "schema": schema, "publication": publication, "hold_s": hold_s}
    )
    try:
        asyncio.run(hold(options, application, int(spark_pid)))
    except HeadraceError as error:
        _answer({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
