"""The form of a metric's declaration, and the words that declarations share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EVERY = "every service"
READER = "wal-reader"
PUBLISHER = "publisher"
RESPONDER = "snapshot-responder"
SCHEMAS = "schema-publisher"
ARCHIVER = "archiver"
TELEMETRY = "telemetry"
AUDIT = "audit-writer"
LAKE = "lake-writer"
WAL_ARCHIVER = "wal-archiver"
SQL = "sql-server"
CONSOLE = "console"
MIRROR = "mirror"
SINK = "sink"
VERIFY = "verify"
SERVICES = (
    READER,
    PUBLISHER,
    RESPONDER,
    SCHEMAS,
    ARCHIVER,
    AUDIT,
    LAKE,
    WAL_ARCHIVER,
    SQL,
    SINK,
    CONSOLE,
    TELEMETRY,
    MIRROR,
    VERIFY,
)

_KIB = 1024
SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    1800,
    7200,
)
LONG_SECONDS = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14_400)
BYTES = tuple(_KIB << shift for shift in (0, 4, 6, 8, 10, 12, 14, 16, 18, 19, 20, 22, 24, 26))

WAL_STATUSES = ("reserved", "extended", "unreserved", "lost", "missing")
WAL_ALARMS = ("ok", "warning", "critical", "lost")
SPARK_STATES = ("stopped", "starting", "running")
INGEST_MODES = ("fast", "chain", "atomic")


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric that services report."""

    key: str
    kind: Literal["counter", "gauge", "histogram"]
    explain: str
    of: str = EVERY
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def metric(self) -> str:
        """Its name in Prometheus."""
        return f"headrace_{self.key}{'_total' if self.kind == 'counter' else ''}"
