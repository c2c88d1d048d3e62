"""Every metric: its name, meaning, unit, labels and the services that report it. Pure.

A metric's key in `Stats` is its name without prefix and suffix. docs/metrics.md is generated from
these declarations.
"""

from __future__ import annotations

from headrace.metrics.backup_figures import BACKUP_FIGURES
from headrace.metrics.console_figures import CONSOLE_FIGURES
from headrace.metrics.figure import (
    ARCHIVER,
    AUDIT,
    BYTES,
    MIRROR,
    PUBLISHER,
    READER,
    SCHEMAS,
    SECONDS,
    TELEMETRY,
    VERIFY,
    Figure,
)
from headrace.metrics.lake_figures import LAKE_FIGURES
from headrace.metrics.sink_figures import SINK_FIGURES
from headrace.metrics.snapshot_figures import SNAPSHOT_FIGURES
from headrace.metrics.sql_figures import SQL_FIGURES

_PROCESS = (
    Figure(
        "build_info",
        "gauge",
        "Always 1; the labels are the versions of Headrace and Python",
        labels=("version", "python"),
    ),
    Figure("uptime_seconds", "gauge", "Seconds since the service started"),
    Figure("ready", "gauge", "1 while the service is ready, else 0"),
    Figure(
        "not_ready",
        "gauge",
        "1 for each part that keeps the service from being ready",
        labels=("part",),
    ),
    Figure("memory_bytes", "gauge", "Resident memory of the process, in bytes"),
    Figure("cpu_seconds", "counter", "Processor time of the process, in seconds"),
    Figure("nats_connected", "gauge", "1 while the service is connected to NATS"),
    Figure("nats_reconnects", "counter", "NATS reconnections"),
    Figure(
        "errors",
        "counter",
        "Warnings and errors logged, by the name of the log event",
        labels=("level", "kind"),
    ),
)
_READER = (
    Figure("wal_messages", "counter", "pgoutput messages read from the slot", READER),
    Figure("wal_bytes", "counter", "Bytes read from the slot", READER),
    Figure("frames_sent", "counter", "Frames sent on the internal bus", READER),
    Figure("in_flight_bytes", "gauge", "Bytes sent on the internal bus, not consumed yet", READER),
    Figure(
        "credit_bytes",
        "gauge",
        "Flow-control credit: bytes that may be sent before earlier ones are consumed",
        READER,
    ),
    Figure("received_lsn", "gauge", "Last LSN received from PostgreSQL", READER),
    Figure(
        "confirmed_lsn",
        "gauge",
        "LSN confirmed to PostgreSQL by wal-reader, or to wal-reader by the publisher",
        f"{READER}, {PUBLISHER}",
    ),
    Figure("pg_connected", "gauge", "1 while the replication connection is streaming", READER),
    Figure("pg_reconnects", "counter", "Replication connections after the first", READER),
    Figure("epochs", "counter", "Epochs started on the internal bus", READER),
    Figure(
        "confirmers_dropped",
        "counter",
        "Times that an optional confirmer was no longer waited for",
        READER,
    ),
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
        "The same events by table (its token) and operation; with --delivery batch the "
        "operation is batch. Above 500 series the table is (other)",
        PUBLISHER,
        ("table", "operation"),
    ),
    Figure("transactions", "counter", "Transactions delivered completely", PUBLISHER),
    Figure("published_bytes", "counter", "Payload bytes acknowledged by JetStream", PUBLISHER),
    Figure(
        "ack_lag_seconds",
        "histogram",
        "Time from commit to JetStream's acknowledgement, once per frame, of its oldest "
        "transaction",
        PUBLISHER,
        bounds=SECONDS,
    ),
    Figure(
        "ack_lag_bytes",
        "histogram",
        "WAL received and not acknowledged yet, in bytes, measured once per frame",
        PUBLISHER,
        bounds=BYTES,
    ),
    Figure(
        "lag_seconds",
        "gauge",
        "Age of the oldest commit that was received and is not acknowledged; 0 if there is none",
        PUBLISHER,
    ),
    Figure(
        "last_processing_time_us",
        "gauge",
        "Time from the latest frame's receipt to its publication",
        PUBLISHER,
    ),
    Figure("window_messages", "gauge", "Messages published and not acknowledged yet", PUBLISHER),
    Figure(
        "skipped_events",
        "counter",
        "Change events that were already in the stream when published again",
        PUBLISHER,
    ),
    Figure(
        "duplicates_refused",
        "counter",
        "Messages refused by JetStream's duplicate window",
        PUBLISHER,
    ),
    Figure(
        "batches_broken",
        "counter",
        "Fast-ingest batches ended early by another source's message",
        PUBLISHER,
    ),
    Figure(
        "turns_passed", "counter", "Turns at the stream's end passed to another source", PUBLISHER
    ),
    Figure(
        "parked_messages", "counter", "Changes that could not be decoded and were parked", PUBLISHER
    ),
    Figure("gaps", "counter", "Gaps reported: ranges of lost changes", PUBLISHER),
    Figure(
        "recoveries",
        "counter",
        "Times that the publisher restarted from its resume point",
        PUBLISHER,
    ),
    Figure(
        "ingest_mode",
        "gauge",
        "1 for the publishing mode in use: fast, chain, atomic",
        PUBLISHER,
        ("mode",),
    ),
    Figure("paused", "gauge", "1 while publishing is paused by headrace pause", PUBLISHER),
)
_SCHEMAS = (
    Figure("schemas_published", "counter", "Table schemas written to the KV bucket", SCHEMAS),
    Figure("tables", "gauge", "Tables in the publication", SCHEMAS),
)
_ARCHIVER = (
    Figure("archive_files", "counter", "Files written to the archive", ARCHIVER),
    Figure("archive_rows", "counter", "Changes written to the archive", ARCHIVER),
    Figure("archive_bytes", "counter", "Bytes of files written to the archive", ARCHIVER),
    Figure("archive_file_id", "gauge", "Id of the last archive file", ARCHIVER),
    Figure("archive_confirmed_lsn", "gauge", "LSN before which the archive is complete", ARCHIVER),
    Figure(
        "archive_waiting_rows", "gauge", "Changes received and not in an archive file yet", ARCHIVER
    ),
    Figure("archive_gaps", "counter", "Gaps recorded in the archive", ARCHIVER),
    Figure(
        "archive_parked_messages",
        "counter",
        "Changes that could not be archived and were parked",
        ARCHIVER,
    ),
    Figure(
        "archive_base_age_seconds",
        "gauge",
        "Age of the oldest among the tables' newest base snapshots, every 10 minutes; missing if "
        "there is none",
        ARCHIVER,
    ),
    Figure(
        "archive_recoveries",
        "counter",
        "Times that the archiver restarted from its resume point",
        ARCHIVER,
    ),
)
_AUDIT = (
    Figure(
        "audit_rows",
        "counter",
        "Changes read for the audit table, by operation",
        AUDIT,
        ("operation",),
    ),
    Figure(
        "audit_transactions", "counter", "Transactions committed to the audit's destination", AUDIT
    ),
    Figure("audit_commits", "counter", "Commits in the audit's destination", AUDIT),
    Figure("audit_lsn", "gauge", "Commit LSN up to which the audit trail is written", AUDIT),
    Figure(
        "audit_lag_seconds", "gauge", "Time from the latest change's commit to its audit row", AUDIT
    ),
    Figure(
        "audit_behind_messages",
        "gauge",
        "Stream messages that the audit trail has not processed",
        AUDIT,
    ),
    Figure(
        "audit_behind_seconds",
        "gauge",
        "Age of the oldest of these messages; 0 at the stream's end",
        AUDIT,
    ),
    Figure("audit_gaps", "counter", "Gaps recorded in the audit trail", AUDIT),
    Figure(
        "audit_recoveries",
        "counter",
        "Times that the audit-writer restarted from its resume point",
        AUDIT,
    ),
    Figure("audit_expired", "counter", "Old rows or partitions removed", AUDIT),
)
_MIRROR = (
    Figure("mirror_events", "counter", "Events that the mirror has applied and committed", MIRROR),
    Figure("mirror_tables", "gauge", "Tables that have finished their bootstrap", MIRROR),
    Figure("mirror_unfollowed", "gauge", "Tables that have not finished their bootstrap", MIRROR),
    Figure("mirror_bootstrapping", "gauge", "Tables being bootstrapped", MIRROR),
    Figure(
        "mirror_parked",
        "gauge",
        "Tables that the target refuses; the log contains the reasons",
        MIRROR,
    ),
    Figure("mirror_waiting", "gauge", "Tables waiting for their bootstrap to start", MIRROR),
    Figure(
        "mirror_standing_seconds",
        "gauge",
        (
            "How long readers have been held at one moment while a table that they see is "
            "copied again; 0 if they aren't"
        ),
        MIRROR,
    ),
    Figure("mirror_bootstraps", "counter", "Bootstraps completed", MIRROR),
    Figure("mirror_rows", "counter", "Rows loaded from snapshots", MIRROR),
    Figure(
        "mirror_mismatches",
        "counter",
        "Changes of rows that the mirror did not have; the table is then copied again",
        MIRROR,
    ),
    Figure(
        "mirror_retention_gaps",
        "counter",
        "Times that the stream no longer contained the mirror's next message",
        MIRROR,
    ),
    Figure(
        "mirror_behind_messages",
        "gauge",
        "Stream messages that the mirror has not processed",
        MIRROR,
    ),
    Figure(
        "mirror_behind_seconds",
        "gauge",
        "Age of the oldest of these messages; 0 at the stream's end",
        MIRROR,
    ),
    Figure(
        "mirror_stream_seq",
        "gauge",
        "Stream sequence up to which the mirror is complete",
        MIRROR,
    ),
    Figure(
        "mirror_lsn", "gauge", "Commit LSN of the last event that the mirror has committed", MIRROR
    ),
)
_VERIFY = (
    Figure("verify_runs", "counter", "Comparisons of all tables", VERIFY),
    Figure("verify_seconds", "gauge", "Duration of the last comparison", VERIFY),
    Figure("verify_rows", "gauge", "Source rows in the last comparison", VERIFY),
    Figure(
        "verify_differences",
        "gauge",
        "Rows that differed in the last comparison, by table",
        VERIFY,
        ("table",),
    ),
)
_TELEMETRY = (
    Figure("up", "gauge", "1 while the service in the label reports to telemetry", TELEMETRY),
    Figure("instances", "gauge", "Processes of that service that report to telemetry", TELEMETRY),
    Figure("pg_reachable", "gauge", "1 while telemetry can query PostgreSQL", TELEMETRY),
    Figure("slot_active", "gauge", "1 while a process reads the slot", TELEMETRY),
    Figure(
        "slot_wal_status",
        "gauge",
        "1 for the slot's wal_status: reserved, extended, unreserved, lost; or missing if "
        "there is no slot",
        TELEMETRY,
        ("status",),
    ),
    Figure("lag_bytes", "gauge", "WAL written and not confirmed yet, in bytes", TELEMETRY),
    Figure(
        "slot_lag_bytes",
        "histogram",
        "The same, observed at each check of the slot",
        TELEMETRY,
        bounds=BYTES,
    ),
    Figure(
        "retained_bytes", "gauge", "WAL that PostgreSQL retains for the slot, in bytes", TELEMETRY
    ),
    Figure(
        "safe_wal_bytes",
        "gauge",
        "WAL that may still be written before PostgreSQL invalidates the slot, in bytes",
        TELEMETRY,
    ),
    Figure(
        "slot_loss_seconds",
        "gauge",
        "Projected time until the slot is lost to max_slot_wal_keep_size",
        TELEMETRY,
    ),
    Figure("wal_lsn", "gauge", "The end of PostgreSQL's WAL, as an LSN", TELEMETRY),
    Figure(
        "wal_rate_bytes", "gauge", "WAL written per second, averaged over a few minutes", TELEMETRY
    ),
    Figure(
        "wal_alarm",
        "gauge",
        "1 for the alarm level of the slot: ok, warning, critical, lost",
        TELEMETRY,
        ("level",),
    ),
    Figure("stream_messages", "gauge", "Messages in the stream", TELEMETRY, ("stream",)),
    Figure("stream_bytes", "gauge", "Bytes in the stream", TELEMETRY, ("stream",)),
    Figure(
        "stream_max_bytes", "gauge", "Maximum size of the stream in bytes", TELEMETRY, ("stream",)
    ),
    Figure(
        "stream_max_age_seconds",
        "gauge",
        "Retention time of the stream",
        TELEMETRY,
        ("stream",),
    ),
    Figure("stream_last_seq", "gauge", "The stream's last sequence", TELEMETRY, ("stream",)),
    Figure(
        "stream_consumers",
        "gauge",
        "Consumers of the stream, durable or ephemeral",
        TELEMETRY,
        ("stream",),
    ),
    Figure(
        "consumer_pending_messages",
        "gauge",
        "Messages not delivered to a durable consumer yet",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_unacknowledged_messages",
        "gauge",
        "Messages delivered to a durable consumer and not acknowledged",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_lag_seconds",
        "gauge",
        "Age of the oldest message that a durable consumer has not acknowledged; 0 if it has "
        "acknowledged all",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_left_seconds",
        "gauge",
        "Projected time until the stream discards that message, by age or size",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_left_bytes",
        "gauge",
        "Bytes that may be published before the stream discards that message, estimated",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_left_ratio",
        "gauge",
        "Share of the stream's retention that a durable consumer has left: 1 at the "
        "stream's end, 0 when it loses events",
        TELEMETRY,
        ("stream", "consumer"),
    ),
    Figure(
        "consumer_lost_messages",
        "gauge",
        "Stream sequences discarded before the consumer received them",
        TELEMETRY,
        ("stream", "consumer"),
    ),
)
FIGURES = (
    *_PROCESS,
    *_READER,
    *_PUBLISHER,
    *SNAPSHOT_FIGURES,
    *_SCHEMAS,
    *_ARCHIVER,
    *LAKE_FIGURES,
    *BACKUP_FIGURES,
    *SQL_FIGURES,
    *CONSOLE_FIGURES,
    *SINK_FIGURES,
    *_AUDIT,
    *_TELEMETRY,
    *_MIRROR,
    *_VERIFY,
)
# Metrics that dashboards made for the PG-NATS bridge query; without labels, because the bridge was
# one process.
BRIDGE_FIGURES = (
    Figure("uptime_seconds", "gauge", "Seconds since telemetry started"),
    Figure("wal_messages_received", "counter", "pgoutput messages read from the slot"),
    Figure("cdc_events_published", "counter", "Change events acknowledged by JetStream"),
    Figure("last_ack_lsn", "gauge", "LSN confirmed to PostgreSQL"),
    Figure("connected", "gauge", "1 while the replication connection is streaming"),
    Figure("reconnects", "counter", "Replication connections after the first"),
    Figure("nats_reconnects", "counter", "NATS reconnections"),
    Figure(
        "last_processing_time_us",
        "gauge",
        "Time from the latest frame's receipt to its publication",
    ),
    Figure("slot_active", "gauge", "1 while a process reads the slot"),
    Figure("wal_lag_bytes", "gauge", "WAL written and not confirmed yet, in bytes"),
)
