"""Every metric's name, what it counts, in which unit, with which labels, and who reports it: in one
place. Pure.

A figure's key in `Stats` is its metric's name without prefix and suffix. docs/metrics.md is made
from this.
"""

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
MIRROR = "mirror"
VERIFY = "verify"
SERVICES = (READER, PUBLISHER, RESPONDER, SCHEMAS, ARCHIVER, AUDIT, TELEMETRY, MIRROR, VERIFY)

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
    """A figure that services report."""

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


_PROCESS = (
    Figure(
        "build_info",
        "gauge",
        "1; the versions of Headrace and Python",
        labels=("version", "python"),
    ),
    Figure("uptime_seconds", "gauge", "Seconds since the service started"),
    Figure("ready", "gauge", "1 while the service can do its work"),
    Figure(
        "not_ready",
        "gauge",
        "1 for each part that keeps the service from its work",
        labels=("part",),
    ),
    Figure("memory_bytes", "gauge", "Resident memory of the process"),
    Figure("cpu_seconds", "counter", "Processor time of the process"),
    Figure("nats_connected", "gauge", "1 while NATS is connected"),
    Figure("nats_reconnects", "counter", "NATS reconnections"),
    Figure(
        "errors",
        "counter",
        "Warnings and errors logged, by the event's name",
        labels=("level", "kind"),
    ),
)
_READER = (
    Figure("wal_messages", "counter", "pgoutput messages read from the slot", READER),
    Figure("wal_bytes", "counter", "Bytes read from the slot", READER),
    Figure("frames_sent", "counter", "Frames sent on the internal bus", READER),
    Figure("in_flight_bytes", "gauge", "Bytes sent on the bus and not consumed yet", READER),
    Figure(
        "credit_bytes",
        "gauge",
        "Bytes that may still be sent before earlier ones are consumed",
        READER,
    ),
    Figure("received_lsn", "gauge", "Last LSN received from PostgreSQL", READER),
    Figure(
        "confirmed_lsn",
        "gauge",
        "LSN confirmed: to PostgreSQL, or by the publisher",
        f"{READER}, {PUBLISHER}",
    ),
    Figure("pg_connected", "gauge", "1 while the replication connection streams", READER),
    Figure("pg_reconnects", "counter", "Replication connections after the first", READER),
    Figure("epochs", "counter", "Epochs begun on the internal bus", READER),
    Figure("confirmers_dropped", "counter", "Optional confirmers no longer waited for", READER),
)
_PUBLISHER = (
    Figure(
        "frames_received",
        "counter",
        "Frames received from the internal bus",
        f"{PUBLISHER}, archiver",
    ),
    Figure("cdc_events", "counter", "Change events acknowledged by JetStream", PUBLISHER),
    Figure(
        "table_events",
        "counter",
        "Those events by table (its token) and operation; with --delivery batch the operation is "
        "batch. Beyond 500 "
        "series the table is (other)",
        PUBLISHER,
        ("table", "operation"),
    ),
    Figure("transactions", "counter", "Transactions delivered whole", PUBLISHER),
    Figure("published_bytes", "counter", "Payload bytes acknowledged by JetStream", PUBLISHER),
    Figure(
        "ack_lag_seconds",
        "histogram",
        "From the commit to JetStream's acknowledgement: for each frame, of its oldest transaction",
        PUBLISHER,
        bounds=SECONDS,
    ),
    Figure(
        "ack_lag_bytes",
        "histogram",
        "WAL received and not acknowledged yet, whenever a frame is",
        PUBLISHER,
        bounds=BYTES,
    ),
    Figure(
        "lag_seconds",
        "gauge",
        "Age of the oldest commit received and not acknowledged; 0 without one",
        PUBLISHER,
    ),
    Figure(
        "last_processing_time_us",
        "gauge",
        "Time the latest frame took from receipt to publishing",
        PUBLISHER,
    ),
    Figure("window_messages", "gauge", "Messages published and not acknowledged yet", PUBLISHER),
    Figure(
        "skipped_events",
        "counter",
        "Dedupe hits: change events that were in the stream already",
        PUBLISHER,
    ),
    Figure(
        "duplicates_refused",
        "counter",
        "Messages that JetStream's duplicate window knew",
        PUBLISHER,
    ),
    Figure("batches_broken", "counter", "Batches cut short by another source's message", PUBLISHER),
    Figure(
        "turns_passed",
        "counter",
        "Turns at the stream's end passed to another source that waited",
        PUBLISHER,
    ),
    Figure(
        "parked_messages", "counter", "Changes that could not be read and were put aside", PUBLISHER
    ),
    Figure("gaps", "counter", "Gaps told: changes that are lost", PUBLISHER),
    Figure("recoveries", "counter", "Times the publisher found its place again", PUBLISHER),
    Figure(
        "ingest_mode",
        "gauge",
        "1 for the way of publishing in use: fast, chain, atomic",
        PUBLISHER,
        ("mode",),
    ),
    Figure("paused", "gauge", "1 while publishing is paused by headrace pause", PUBLISHER),
)
_RESPONDER = (
    Figure("snapshots_requested", "counter", "Snapshot requests taken", RESPONDER),
    Figure("snapshots_completed", "counter", "Snapshots completed", RESPONDER),
    Figure("snapshots_failed", "counter", "Snapshots that ended in an error", RESPONDER),
    Figure("snapshots_running", "gauge", "Snapshots being copied now", RESPONDER),
    Figure(
        "snapshot_requests_held",
        "gauge",
        "Requests that wait for the end of their snapshot",
        RESPONDER,
    ),
    Figure("snapshot_rows", "counter", "Rows in completed snapshots", RESPONDER),
    Figure(
        "snapshot_seconds",
        "histogram",
        "How long completed snapshots took",
        RESPONDER,
        bounds=LONG_SECONDS,
    ),
    Figure(
        "snapshot_progress_rows",
        "gauge",
        "Rows copied so far, of a running snapshot",
        RESPONDER,
        ("table",),
    ),
    Figure(
        "snapshot_estimated_rows", "gauge", "Rows it will have, as estimated", RESPONDER, ("table",)
    ),
    Figure(
        "spark_state",
        "gauge",
        "1 for the state of Spark: stopped, starting, running",
        RESPONDER,
        ("state",),
    ),
    Figure("spark_losses", "counter", "Times Spark's driver was lost under a snapshot", RESPONDER),
)
_SCHEMAS = (
    Figure("schemas_published", "counter", "Table schemas written to the KV bucket", SCHEMAS),
    Figure("tables", "gauge", "Tables of the publication", SCHEMAS),
)
_ARCHIVER = (
    Figure("archive_files", "counter", "Files written to the archive", ARCHIVER),
    Figure("archive_rows", "counter", "Changes written to the archive", ARCHIVER),
    Figure("archive_bytes", "counter", "Bytes of the files written to the archive", ARCHIVER),
    Figure("archive_file_id", "gauge", "Id of the archive's last file", ARCHIVER),
    Figure(
        "archive_confirmed_lsn", "gauge", "LSN before which the archive holds everything", ARCHIVER
    ),
    Figure("archive_waiting_rows", "gauge", "Changes taken and not in a file yet", ARCHIVER),
    Figure("archive_gaps", "counter", "Gaps told in the archive", ARCHIVER),
    Figure(
        "archive_parked_messages",
        "counter",
        "Changes that could not be archived and were put aside",
        ARCHIVER,
    ),
    Figure("archive_recoveries", "counter", "Times the archiver found its place again", ARCHIVER),
)
_AUDIT = (
    Figure(
        "audit_rows",
        "counter",
        "Changes read for the audit table, by operation",
        AUDIT,
        ("operation",),
    ),
    Figure("audit_transactions", "counter", "Transactions in the audit's destination", AUDIT),
    Figure("audit_commits", "counter", "Commits of the audit's destination", AUDIT),
    Figure("audit_lsn", "gauge", "Commit LSN up to which the trail is written", AUDIT),
    Figure("audit_lag_seconds", "gauge", "From the commit of the latest change to its row", AUDIT),
    Figure(
        "audit_behind_messages",
        "gauge",
        "Messages of the stream that are not settled in the trail",
        AUDIT,
    ),
    Figure(
        "audit_behind_seconds", "gauge", "Age of the oldest of them; 0 at the stream's end", AUDIT
    ),
    Figure("audit_gaps", "counter", "Gaps told in the trail", AUDIT),
    Figure("audit_recoveries", "counter", "Times the audit-writer found its place again", AUDIT),
    Figure("audit_expired", "counter", "Old rows, or partitions, that were removed", AUDIT),
)
_MIRROR = (
    Figure("mirror_events", "counter", "Events that the mirror has read and committed", MIRROR),
    Figure("mirror_tables", "gauge", "Tables that are past their bootstrap", MIRROR),
    Figure("mirror_unfollowed", "gauge", "Tables that are not past their bootstrap", MIRROR),
    Figure("mirror_bootstrapping", "gauge", "Tables that are being bootstrapped", MIRROR),
    Figure(
        "mirror_parked",
        "gauge",
        "Tables that the target refuses; the log has each one's reason",
        MIRROR,
    ),
    Figure("mirror_waiting", "gauge", "Tables that wait for their bootstrap to begin", MIRROR),
    Figure(
        "mirror_standing_seconds",
        "gauge",
        (
            "For how long readers have kept one moment, while a table that they see is copied "
            "again; 0: they don't"
        ),
        MIRROR,
    ),
    Figure("mirror_bootstraps", "counter", "Bootstraps completed", MIRROR),
    Figure("mirror_rows", "counter", "Rows loaded from snapshots", MIRROR),
    Figure(
        "mirror_mismatches",
        "counter",
        "Changes of rows that the mirror did not have: the table is copied again",
        MIRROR,
    ),
    Figure(
        "mirror_retention_gaps",
        "counter",
        "Times the stream no longer had what the mirror needed next",
        MIRROR,
    ),
    Figure(
        "mirror_behind_messages",
        "gauge",
        "Messages of the stream that are not settled in the mirror",
        MIRROR,
    ),
    Figure(
        "mirror_behind_seconds", "gauge", "Age of the oldest of them; 0 at the stream's end", MIRROR
    ),
    Figure(
        "mirror_stream_seq",
        "gauge",
        "Stream sequence up to which the mirror has everything",
        MIRROR,
    ),
    Figure(
        "mirror_lsn", "gauge", "Commit LSN of the last event that the mirror has committed", MIRROR
    ),
)
_VERIFY = (
    Figure("verify_runs", "counter", "Comparisons of all tables", VERIFY),
    Figure("verify_seconds", "gauge", "How long the last comparison took", VERIFY),
    Figure("verify_rows", "gauge", "Rows of the source in the last comparison", VERIFY),
    Figure(
        "verify_differences",
        "gauge",
        "Rows that differ in the last comparison, by table",
        VERIFY,
        ("table",),
    ),
)
_TELEMETRY = (
    Figure("up", "gauge", "1 while the service named by the label reports to telemetry", TELEMETRY),
    Figure("instances", "gauge", "Processes of that service that report to telemetry", TELEMETRY),
    Figure("pg_reachable", "gauge", "1 while PostgreSQL answers telemetry", TELEMETRY),
    Figure("slot_active", "gauge", "1 while the slot is being read", TELEMETRY),
    Figure(
        "slot_wal_status",
        "gauge",
        "1 for the slot's wal_status: reserved, extended, unreserved, lost; missing without a slot",
        TELEMETRY,
        ("status",),
    ),
    Figure("lag_bytes", "gauge", "WAL written and not confirmed", TELEMETRY),
    Figure(
        "slot_lag_bytes", "histogram", "The same at each look at the slot", TELEMETRY, bounds=BYTES
    ),
    Figure("retained_bytes", "gauge", "WAL that PostgreSQL keeps for the slot", TELEMETRY),
    Figure(
        "safe_wal_bytes",
        "gauge",
        "WAL that may still be written before the slot is lost",
        TELEMETRY,
    ),
    Figure(
        "slot_loss_seconds",
        "gauge",
        "Projected time until max_slot_wal_keep_size loses the slot",
        TELEMETRY,
    ),
    Figure("wal_lsn", "gauge", "Where PostgreSQL's log ends", TELEMETRY),
    Figure("wal_rate_bytes", "gauge", "WAL written per second, over some minutes", TELEMETRY),
    Figure(
        "wal_alarm",
        "gauge",
        "1 for the verdict on the slot: ok, warning, critical, lost",
        TELEMETRY,
        ("level",),
    ),
    Figure("stream_messages", "gauge", "Messages in the stream", TELEMETRY, ("stream",)),
    Figure("stream_bytes", "gauge", "Bytes in the stream", TELEMETRY, ("stream",)),
    Figure("stream_max_bytes", "gauge", "Bytes the stream may hold", TELEMETRY, ("stream",)),
    Figure(
        "stream_max_age_seconds",
        "gauge",
        "How long the stream keeps a message",
        TELEMETRY,
        ("stream",),
    ),
    Figure("stream_last_seq", "gauge", "The stream's last sequence", TELEMETRY, ("stream",)),
    Figure(
        "stream_consumers",
        "gauge",
        "Consumers of the stream, durable or not",
        TELEMETRY,
        ("stream",),
    ),
    Figure(
        "consumer_pending_messages",
        "gauge",
        "Messages that a durable consumer has not been given yet",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_unacknowledged_messages",
        "gauge",
        "Messages it was given and has not acknowledged",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_lag_seconds",
        "gauge",
        "Age of the oldest message it has not acknowledged; 0 when it has all",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_left_seconds",
        "gauge",
        "Projected time until the stream discards that message, by age or by size",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_left_bytes",
        "gauge",
        "Bytes that may still be published before the stream discards it, about",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_left_ratio",
        "gauge",
        (
            "The share of the stream's retention that is left to it: 1 at the stream's end, 0 "
            "where it loses events"
        ),
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_lost_messages",
        "gauge",
        "Stream sequences that were discarded before it had them",
        TELEMETRY,
        ("stream", "consumer"),
    ),
)
FIGURES = (
    *_PROCESS,
    *_READER,
    *_PUBLISHER,
    *_RESPONDER,
    *_SCHEMAS,
    *_ARCHIVER,
    *_AUDIT,
    *_TELEMETRY,
    *_MIRROR,
    *_VERIFY,
)
# What dashboards made for the PG-NATS bridge ask for; without labels, since its process was one.
BRIDGE_FIGURES = (
    Figure("uptime_seconds", "gauge", "Seconds since telemetry started"),
    Figure("wal_messages_received", "counter", "pgoutput messages read from the slot"),
    Figure("cdc_events_published", "counter", "Change events acknowledged by JetStream"),
    Figure("last_ack_lsn", "gauge", "LSN confirmed to PostgreSQL"),
    Figure("connected", "gauge", "1 while the replication connection streams"),
    Figure("reconnects", "counter", "Replication connections after the first"),
    Figure("nats_reconnects", "counter", "NATS reconnections"),
    Figure(
        "last_processing_time_us", "gauge", "Time the latest frame took from receipt to publishing"
    ),
    Figure("slot_active", "gauge", "1 while the slot is being read"),
    Figure("wal_lag_bytes", "gauge", "WAL written and not confirmed"),
)
