"""The services of a suite: their names, ports, purposes and telling metrics. Pure.

Every list of services comes from here: the command line, `headrace up`, `status`, the pages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """One service. `telling` are the metrics that `headrace status` shows in its line."""

    name: str
    port: int
    purpose: str
    telling: tuple[str, ...]
    # Runs only where its setting asks for it: an archive, an audit trail.
    optional: bool = False


WAL_READER = ServiceFacts(
    "wal-reader",
    9091,
    "Read the replication slot and send frames on the internal bus.",
    ("wal_messages", "frames_sent", "in_flight_bytes", "pg_reconnects"),
)
PUBLISHER = ServiceFacts(
    "publisher",
    9092,
    "Publish changes to JetStream, exactly once and in commit order.",
    ("cdc_events", "transactions", "skipped_events", "window_messages", "gaps"),
)
ARCHIVER = ServiceFacts(
    "archiver",
    9095,
    "Keep the log as numbered files in object storage, exactly once and in commit order.",
    ("archive_files", "archive_rows", "archive_waiting_rows", "archive_gaps"),
    optional=True,
)
AUDIT_WRITER = ServiceFacts(
    "audit-writer",
    9096,
    "Write every change as a row of the audit table, exactly once.",
    ("audit_transactions", "audit_commits", "audit_behind_messages", "audit_gaps"),
    optional=True,
)
LAKE_WRITER = ServiceFacts(
    "lake-writer",
    9097,
    "Keep Iceberg tables current from the archive, all of them at one moment.",
    ("lake_cuts", "lake_rows", "lake_behind_files", "lake_tables"),
    optional=True,
)
WAL_ARCHIVER = ServiceFacts(
    "wal-archiver",
    9089,
    "Keep PostgreSQL's physical log in a backup store, without a hole.",
    ("backup_lag_seconds", "backup_unstored_bytes", "backup_log_bytes", "backup_holes"),
    optional=True,
)
SQL_SERVER = ServiceFacts(
    "sql-server",
    9099,
    "Answer SQL over the lake for clients of PostgreSQL, each statement at one moment.",
    ("sql_connections", "sql_statements", "sql_cuts", "sql_cut_age_seconds"),
    optional=True,
)
CONSOLE = ServiceFacts(
    "console",
    9087,
    "Show the suite in a browser, trace changes, and let authorized users act.",
    ("console_live_tabs", "console_requests"),
    optional=True,
)
SNAPSHOT_RESPONDER = ServiceFacts(
    "snapshot-responder",
    9093,
    "Answer snapshot requests with consistent, parallel copies of tables.",
    ("snapshots_completed", "snapshots_failed", "snapshot_rows"),
)
SCHEMA_PUBLISHER = ServiceFacts(
    "schema-publisher",
    9094,
    "Keep table schemas in the NATS KV bucket.",
    ("schemas_published",),
)
TELEMETRY = ServiceFacts(
    "telemetry",
    9090,
    "Serve metrics, status and health of the whole suite.",
    ("retained_bytes", "pg_reachable"),
)
# One process for each sink of headrace.toml, whose reports have the name `sink-NAME`.
SINK = ServiceFacts(
    "sink",
    9088,
    "Deliver changes to one sink of headrace.toml, with a committed position.",
    ("sink_records", "sink_commits", "sink_behind_messages", "sink_parked"),
    optional=True,
)
# In the order in which they stop. The reader is first, so that the publisher can still confirm what
# it read; telemetry is last, so that it sees the others stop.
SERVICES = {
    service.name: service
    for service in (
        WAL_READER,
        PUBLISHER,
        ARCHIVER,
        AUDIT_WRITER,
        LAKE_WRITER,
        WAL_ARCHIVER,
        SQL_SERVER,
        SNAPSHOT_RESPONDER,
        SCHEMA_PUBLISHER,
        CONSOLE,
        TELEMETRY,
    )
}


def sink_service(sink: str) -> str:
    """The name of a sink's process in reports, logs and metrics."""
    return f"{SINK.name}-{sink}"


def facts_of(service: str) -> ServiceFacts | None:
    """The facts of a service or of a sink's process; None for any other program."""
    if service.startswith(f"{SINK.name}-"):
        return SINK
    return SERVICES.get(service)
