"""The metrics of a running suite match what happened, in every delivery mode; and a frame has one
name in all logs.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import orjson
import pytest

from headrace.metrics.catalogue import FIGURES
from headrace.metrics.counters import Stats
from headrace.metrics.figure import PUBLISHER, READER
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.process import ServiceProcess, service
from headrace.testing.suite import Suite
from tests.support.telemetry_answers import (
    status_when,
    values,
)

ROWS = 700
# Metrics of some suites only: those with an archive.
ABSENT = {"confirmers_dropped"}
# Metrics that exist after their first event.
EVENTUAL = {
    "gaps",
    "duplicates_refused",
    "parked_messages",
    "recoveries",
    "skipped_events",
    "nats_reconnects",
}
# Metrics of publishers that share a stream.
EVENTUAL |= {"batches_broken", "turns_passed"}


async def figures_when(telemetry: ServiceProcess, rows: int) -> dict[str, Stats]:
    """The services' figures, once so many rows were counted."""

    def counted(status: dict[str, dict[str, dict[str, Stats]]]) -> bool:
        publisher = status["services"].get("publisher", {}).get("figures", {})
        tables = publisher.get("table_events")
        all_there = (
            isinstance(tables, dict) and sum(n for t, n in tables.items() if t in SERIES) >= rows
        )
        # A frame is noted when the publisher looks up next; the wal-reader reports at another
        # interval.
        reader = status["services"].get("wal-reader", {}).get("figures", {})
        return all_there and "ack_lag_seconds" in publisher and bool(reader.get("frames_sent"))

    status = await status_when(telemetry, counted)
    return {name: service["figures"] for name, service in status["services"].items()}


SERIES = ("counted insert", "counted update", "counted delete", "counted batch")


@pytest.mark.parametrize(
    ("delivery", "mode"),
    [("event", "fast"), ("event", "chain"), ("batch", "fast"), ("transaction", "atomic")],
)
async def test_every_event_is_counted_once_whatever_the_delivery(
    database: Database, own_nats: OwnNats, names: Names, tmp_path: Path, delivery: str, mode: str
) -> None:
    server = await own_nats()
    await database.execute(
        "CREATE TABLE counted (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    settings = {
        **SETTINGS,
        **database.environment(server.url),
        "HEADRACE_SLOT": names.slot,
        "HEADRACE_STATS_INTERVAL_S": "0.1",
        "HEADRACE_DELIVERY": delivery,
        "HEADRACE_INGEST": "chain" if mode == "chain" else "auto",
        "HEADRACE_LOG_FORMAT": "json",
        "HEADRACE_LOG_LEVEL": "debug",
    }
    async with Suite(settings, tmp_path) as suite, service(settings, "telemetry") as telemetry:
        await suite.logged("publisher", "epoch_joined")
        await database.execute(f"INSERT INTO counted SELECT generate_series(1, {ROWS - 200})")
        await database.execute("UPDATE counted SET id = -id WHERE id <= 100")
        await database.execute("DELETE FROM counted WHERE id < 0")
        stats = await figures_when(telemetry, ROWS)
        exposed = values((await telemetry.get("/metrics"))[1])
        await names_agree(suite)
    publisher = stats["publisher"]
    tables = publisher["table_events"]
    assert isinstance(tables, dict)
    found = {series: n for series, n in tables.items() if series in SERIES}
    assert sum(found.values()) == ROWS
    if delivery != "batch":
        assert found == {"counted insert": ROWS - 200, "counted update": 100, "counted delete": 100}
    # The table's shape is an event, too.
    assert publisher["cdc_events"] == sum(tables.values()) == ROWS + 1
    assert publisher["ingest_mode"] == {
        kind: float(kind == mode) for kind in ("fast", "chain", "atomic")
    }
    lag = publisher["ack_lag_seconds"]
    assert isinstance(lag, list)
    assert 1 <= sum(lag[1:]) <= publisher["frames_received"]  # type: ignore[operator]  # a count
    assert 0 < lag[0] < 60 * sum(lag[1:])
    credit = stats["wal-reader"]["credit_bytes"]
    assert isinstance(credit, int)
    assert credit > 0
    shown = {name.partition("{")[0].removesuffix("_bucket") for name in exposed}
    for figure in FIGURES:
        if figure.of in (READER, PUBLISHER) and figure.key not in ABSENT | EVENTUAL:
            assert figure.metric in shown, figure.key


async def names_agree(suite: Suite) -> None:
    """From the sending of a frame to its acknowledgement, each log calls it the same."""
    async with asyncio.timeout(60):
        while not (acknowledged := frames(suite.log("publisher"), "frame_acknowledged")):  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(0.1)
        while not acknowledged & frames(suite.log("wal-reader"), "frames_consumed"):  # noqa: ASYNC110  # the same
            await asyncio.sleep(0.1)
    assert acknowledged <= frames(suite.log("publisher"), "frame_handed_over")
    assert acknowledged <= frames(suite.log("wal-reader"), "frame_sent")


def frames(log: str, event: str) -> set[str]:
    lines = [orjson.loads(line) for line in log.splitlines() if line.startswith("{")]
    found = {str(line["frame"]) for line in lines if line["event"] == event}
    assert all(re.fullmatch(r"[0-9a-f]+-[0-9]+", name) for name in found)
    return found
