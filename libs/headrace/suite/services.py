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
    ("cdc_events", "transactions", "skipped_events", "window_messages"),
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
        SNAPSHOT_RESPONDER,
        SCHEMA_PUBLISHER,
        TELEMETRY,
    )
}
