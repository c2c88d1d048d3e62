"""The Grafana dashboards, as code: each panel is a title, a unit and its queries.

Owns what is on the dashboards. Promises the same bytes for the same code, so that a test can hold
the committed JSON to it, and nothing that Grafana's provisioning would have to fill in but the data
source. Run as `python dashboards.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("dashboards")
SOURCE = {"type": "prometheus", "uid": "headrace-prometheus"}
_WIDTH, _HEIGHT = 24, 8


@dataclass(frozen=True, slots=True)
class Panel:
    """Queries by their name in the legend; `kind` is Grafana's panel type."""

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""
    kind: str = "timeseries"
    width: int = 12


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


# The sinks' processes, of which each has its own name.
_SINKS = "sink-.+"


def _choice(name: str, value: str) -> str:
    return f'{name}=~"{value}"' if value == _SINKS else f'{name}="{value}"'


def _of(metric: str, **labels: str) -> str:
    """A metric of the selected suites."""
    chosen = "".join(f",{_choice(name, value)}" for name, value in labels.items())
    return f'{metric}{{source=~"$source"{chosen}}}'


def _rate(metric: str, by: str = "source", **labels: str) -> str:
    return f"sum by ({by}) (rate({_of(metric, **labels)}[$__rate_interval]))"


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', by='source, le')})"


def _rare(metric: str) -> str:
    """A counter that has no series until its first increment."""
    return f"sum by (source) ({_of(metric)}) or on () vector(0)"


def _kinds(service: str) -> str:
    errors = _of("headrace_errors_total", service=service)
    return f"sum by (level, kind) (increase({errors}[5m])) or on () vector(0)"


def _durations(share: float) -> str:
    buckets = _of("headrace_snapshot_seconds_bucket")
    return f"histogram_quantile({share}, sum by (le) (increase({buckets}[1h])))"


_UNCONFIRMED = " - ".join(
    _of(f"headrace_{end}_lsn", service="wal-reader") for end in ("received", "confirmed")
)
_PROGRESS = " / ".join(_of(f"headrace_snapshot_{rows}_rows") for rows in ("progress", "estimated"))


def _stat(title: str, unit: str, query: str, about: str = "", width: int = 4) -> Panel:
    legend = "{{service}}" if _SINKS in query else "{{source}}"
    return Panel(title, unit, {legend: query}, about, "stat", width)


def _instances(service: str) -> Panel:
    """The number of instances. Telemetry doesn't count itself, and a mirror doesn't report to
    telemetry.
    """
    if service == "telemetry":
        return _stat(
            "Services that have reported",
            "short",
            f"count by (source) ({_of('headrace_up')})",
            width=6,
        )
    if service == "mirror":
        ready = _of("headrace_ready", service=service)
        return _stat(
            "Mirrors",
            "short",
            f"count by (source) ({ready})",
            "Mirrors that Prometheus scrapes.",
            width=6,
        )
    return _stat("Instances", "short", _of("headrace_instances", service=service), width=6)


def _away(service: str, part: str) -> str:
    """1 while a destination of the service is unavailable."""
    return f"{_of('headrace_not_ready', service=service, part=part)} or on () vector(0)"


def _process(service: str) -> tuple[Panel, ...]:
    """The first panels of every service's dashboard."""
    legend = "{{service}}" if service == _SINKS else "{{source}}"
    by = "source, service" if service == _SINKS else "source"
    return (
        _stat(
            "Ready",
            "bool_yes_no",
            _of("headrace_ready", service=service),
            'The panel "Not ready because of" names the reason.',
            6,
        ),
        _instances(service),
        _stat("Up for", "s", _of("headrace_uptime_seconds", service=service), width=6),
        _stat("NATS", "bool_yes_no", _of("headrace_nats_connected", service=service), width=6),
        Panel("Memory", "bytes", {legend: _of("headrace_memory_bytes", service=service)}),
        Panel(
            "Processor",
            "percentunit",
            {legend: _rate("headrace_cpu_seconds_total", by, service=service)},
        ),
        Panel(
            "Warnings and errors by kind",
            "short",
            {"{{level}} {{kind}}": _kinds(service)},
        ),
        Panel(
            "Not ready because of",
            "short",
            {
                "{{part}}": f"max by (part) ({_of('headrace_not_ready', service=service)}) or on () vector(0)"
            },
        ),
    )


OVERVIEW = Dashboard(
    "headrace-overview",
    "Headrace: overview",
    (
        _stat("Events per second", "ops", _rate("headrace_cdc_events_total")),
        _stat("Slot lag", "bytes", _of("headrace_lag_bytes")),
        _stat("Delivery lag", "s", _of("headrace_lag_seconds")),
        _stat("Slot is being read", "bool_yes_no", _of("headrace_slot_active")),
        _stat("Services ready", "short", f"sum by (source) ({_of('headrace_ready')})"),
        _stat(
            "Gaps",
            "short",
            _rare("headrace_gaps_total"),
            "Changes that are lost. See the runbook HeadraceGap.",
        ),
        Panel("Events", "ops", {"{{source}}": _rate("headrace_cdc_events_total")}),
        Panel(
            "Commit to acknowledgement",
            "s",
            {
                "p50 {{source}}": _quantile(0.5, "headrace_ack_lag_seconds"),
                "p99 {{source}}": _quantile(0.99, "headrace_ack_lag_seconds"),
            },
        ),
        Panel(
            "WAL behind and retained",
            "bytes",
            {
                "behind {{source}}": _of("headrace_lag_bytes"),
                "retained {{source}}": _of("headrace_retained_bytes"),
            },
        ),
        Panel(
            "Busiest tables",
            "ops",
            {"{{table}}": f"topk(10, {_rate('headrace_table_events_total', by='table')})"},
        ),
        Panel(
            "Consumers: retention left",
            "percentunit",
            {"{{consumer}}": f"{_of('headrace_consumer_left_ratio')} or on () vector(1)"},
        ),
        Panel("Memory", "bytes", {"{{service}}": _of("headrace_memory_bytes")}),
        Panel(
            "Ready",
            "bool_yes_no",
            {"{{service}}": _of("headrace_ready")},
            kind="state-timeline",
            width=24,
        ),
    ),
)

READER = Dashboard(
    "headrace-wal-reader",
    "Headrace: wal-reader",
    (
        *_process("wal-reader"),
        Panel("Messages read", "ops", {"{{source}}": _rate("headrace_wal_messages_total")}),
        Panel("Bytes read", "Bps", {"{{source}}": _rate("headrace_wal_bytes_total")}),
        Panel(
            "In flight and credit",
            "bytes",
            {
                "in flight {{source}}": _of("headrace_in_flight_bytes"),
                "credit {{source}}": _of("headrace_credit_bytes"),
            },
        ),
        Panel("Frames", "ops", {"{{source}}": _rate("headrace_frames_sent_total")}),
        Panel(
            "Connections and epochs",
            "short",
            {
                "reconnections {{source}}": _rare("headrace_pg_reconnects_total"),
                "epochs {{source}}": _of("headrace_epochs_total"),
            },
        ),
        Panel(
            "Received but not confirmed",
            "bytes",
            {"{{source}}": _UNCONFIRMED},
        ),
        Panel(
            "Optional confirmers dropped",
            "short",
            {"{{source}}": _rare("headrace_confirmers_dropped_total")},
        ),
    ),
)

PUBLISHER = Dashboard(
    "headrace-publisher",
    "Headrace: publisher",
    (
        *_process("publisher"),
        Panel("Events", "ops", {"{{source}}": _rate("headrace_cdc_events_total")}),
        Panel(
            "Events by operation",
            "ops",
            {"{{operation}}": _rate("headrace_table_events_total", by="operation")},
        ),
        Panel("Transactions", "ops", {"{{source}}": _rate("headrace_transactions_total")}),
        Panel("Bytes", "Bps", {"{{source}}": _rate("headrace_published_bytes_total")}),
        Panel(
            "Commit to acknowledgement",
            "s",
            {
                f"p{share:g}": _quantile(share / 100, "headrace_ack_lag_seconds")
                for share in (50, 90, 99)
            },
        ),
        Panel(
            "WAL received but not acknowledged",
            "bytes",
            {f"p{share:g}": _quantile(share / 100, "headrace_ack_lag_bytes") for share in (50, 99)},
        ),
        Panel("Unacknowledged messages", "short", {"{{source}}": _of("headrace_window_messages")}),
        Panel("Time per frame", "µs", {"{{source}}": _of("headrace_last_processing_time_us")}),
        Panel(
            "Already in the stream",
            "short",
            {
                "by position {{source}}": _rare("headrace_skipped_events_total"),
                "by id {{source}}": _rare("headrace_duplicates_refused_total"),
            },
        ),
        Panel(
            "Parked changes, gaps, recoveries",
            "short",
            {
                "parked {{source}}": _rare("headrace_parked_messages_total"),
                "gaps {{source}}": _rare("headrace_gaps_total"),
                "recoveries {{source}}": _rare("headrace_recoveries_total"),
            },
        ),
        Panel(
            "Publishing method",
            "short",
            {"{{mode}}": _of("headrace_ingest_mode")},
            kind="state-timeline",
        ),
        Panel(
            "Paused", "bool_yes_no", {"{{source}}": _of("headrace_paused")}, kind="state-timeline"
        ),
    ),
)

SNAPSHOTS = Dashboard(
    "headrace-snapshots",
    "Headrace: snapshots (snapshot-responder)",
    (
        *_process("snapshot-responder"),
        Panel(
            "Snapshots",
            "short",
            {
                "requested {{source}}": _of("headrace_snapshots_requested_total"),
                "completed {{source}}": _of("headrace_snapshots_completed_total"),
                "failed {{source}}": _rare("headrace_snapshots_failed_total"),
            },
        ),
        Panel(
            "Running and waiting",
            "short",
            {
                "running {{source}}": _of("headrace_snapshots_running"),
                "requests held {{source}}": _of("headrace_snapshot_requests_held"),
            },
        ),
        Panel("Rows", "ops", {"{{source}}": _rate("headrace_snapshot_rows_total")}),
        Panel(
            "Progress of running snapshots",
            "percentunit",
            {"{{table}}": f"{_PROGRESS} or on () vector(0)"},
        ),
        Panel(
            "Duration",
            "s",
            {f"p{share:g}": _durations(share / 100) for share in (50, 99)},
        ),
        Panel("Spark", "short", {"{{state}}": _of("headrace_spark_state")}, kind="state-timeline"),
        Panel("Spark lost", "short", {"{{source}}": _rare("headrace_spark_losses_total")}),
    ),
)

SCHEMAS = Dashboard(
    "headrace-schema-publisher",
    "Headrace: schema-publisher",
    (
        *_process("schema-publisher"),
        Panel("Tables", "short", {"{{source}}": _of("headrace_tables")}),
        Panel("Schemas written", "short", {"{{source}}": _of("headrace_schemas_published_total")}),
    ),
)

TELEMETRY = Dashboard(
    "headrace-telemetry",
    "Headrace: telemetry",
    (
        *_process("telemetry"),
        Panel(
            "Reporting services",
            "bool_yes_no",
            {"{{service}}": _of("headrace_up")},
            kind="state-timeline",
        ),
        Panel(
            "Versions",
            "short",
            {
                "{{service}} {{version}}": f"count by (service, version) ({_of('headrace_build_info')})"
            },
        ),
        Panel("Scrape duration", "s", {"{{instance}}": 'scrape_duration_seconds{job="headrace"}'}),
        Panel("Series", "short", {"{{instance}}": 'scrape_samples_scraped{job="headrace"}'}),
    ),
)

SLOT = Dashboard(
    "headrace-slot",
    "Headrace: PostgreSQL slot",
    (
        _stat("PostgreSQL reachable", "bool_yes_no", _of("headrace_pg_reachable"), width=6),
        _stat("Slot is being read", "bool_yes_no", _of("headrace_slot_active"), width=6),
        _stat("Behind", "bytes", _of("headrace_lag_bytes"), width=6),
        _stat("WAL retained for the slot", "bytes", _of("headrace_retained_bytes"), width=6),
        Panel(
            "Behind and retained",
            "bytes",
            {
                "behind {{source}}": _of("headrace_lag_bytes"),
                "retained {{source}}": _of("headrace_retained_bytes"),
            },
        ),
        Panel("WAL written", "Bps", {"{{source}}": _of("headrace_wal_rate_bytes")}),
        Panel(
            "WAL status",
            "short",
            {"{{status}}": _of("headrace_slot_wal_status")},
            kind="state-timeline",
        ),
        Panel(
            "Alarm level", "short", {"{{level}}": _of("headrace_wal_alarm")}, kind="state-timeline"
        ),
        Panel(
            "Until the slot is lost",
            "s",
            {"{{source}}": f"{_of('headrace_slot_loss_seconds')} or on () vector(Inf)"},
            "At the current rate of WAL. Infinite while changes are delivered as fast as they are written.",
        ),
        Panel(
            "WAL until the limit",
            "bytes",
            {"{{source}}": f"{_of('headrace_safe_wal_bytes')} or on () vector(Inf)"},
            "Infinite without max_slot_wal_keep_size.",
        ),
        Panel(
            "Lag at each check",
            "bytes",
            {
                f"p{share:g}": _quantile(share / 100, "headrace_slot_lag_bytes")
                for share in (50, 99)
            },
        ),
        Panel("End of the log", "short", {"{{source}}": _of("headrace_wal_lsn")}),
    ),
)

JETSTREAM = Dashboard(
    "headrace-jetstream",
    "Headrace: JetStream",
    (
        Panel("Messages", "short", {"{{stream}}": _of("headrace_stream_messages")}),
        Panel("Bytes", "bytes", {"{{stream}}": _of("headrace_stream_bytes")}),
        Panel(
            "Published",
            "ops",
            {
                "{{stream}}": f"sum by (stream) (rate({_of('headrace_stream_last_seq')}[$__rate_interval]))"
            },
        ),
        Panel("Maximum size", "bytes", {"{{stream}}": _of("headrace_stream_max_bytes")}),
        Panel("Maximum age", "s", {"{{stream}}": _of("headrace_stream_max_age_seconds")}),
        Panel("Consumers", "short", {"{{stream}}": _of("headrace_stream_consumers")}),
        Panel(
            "Durable consumers: pending",
            "short",
            {
                "{{stream}} {{consumer}}": f"{_of('headrace_consumer_pending_messages')} or on () vector(0)"
            },
        ),
        Panel(
            "Durable consumers: not acknowledged",
            "short",
            {
                "{{stream}} {{consumer}}": f"{_of('headrace_consumer_unacknowledged_messages')} or on () vector(0)"
            },
        ),
        Panel(
            "Durable consumers: behind by",
            "s",
            {
                "{{stream}} {{consumer}}": f"{_of('headrace_consumer_lag_seconds')} or on () vector(0)"
            },
        ),
        Panel(
            "Durable consumers: retention left",
            "percentunit",
            {
                "{{stream}} {{consumer}}": f"{_of('headrace_consumer_left_ratio')} or on () vector(1)"
            },
        ),
        Panel(
            "Durable consumers: time until events are lost",
            "s",
            {
                "{{stream}} {{consumer}}": f"{_of('headrace_consumer_left_seconds')} or on () vector(Inf)"
            },
        ),
        Panel(
            "Durable consumers: lost messages",
            "short",
            {
                "{{stream}} {{consumer}}": f"{_of('headrace_consumer_lost_messages')} or on () vector(0)"
            },
        ),
    ),
)

ARCHIVE = Dashboard(
    "headrace-archive",
    "Headrace: archive (archiver)",
    (
        *_process("archiver"),
        Panel("Files", "ops", {"{{source}}": _rate("headrace_archive_files_total")}),
        Panel("Changes", "ops", {"{{source}}": _rate("headrace_archive_rows_total")}),
        Panel("Bytes", "Bps", {"{{source}}": _rate("headrace_archive_bytes_total")}),
        Panel(
            "Changes not yet in a file",
            "short",
            {"{{source}}": _of("headrace_archive_waiting_rows")},
        ),
        Panel("Last file", "short", {"{{source}}": _of("headrace_archive_file_id")}),
        Panel(
            "Archived up to",
            "short",
            {"{{source}}": _of("headrace_archive_confirmed_lsn")},
        ),
        Panel(
            "Gaps and recoveries",
            "short",
            {
                "gaps": _rare("headrace_archive_gaps_total"),
                "recoveries": _rare("headrace_archive_recoveries_total"),
            },
        ),
    ),
)

LAKE = Dashboard(
    "headrace-lake",
    "Headrace: lake (lake-writer)",
    (
        *_process("lake-writer"),
        Panel(
            "Age of the oldest archive file that no cut shows",
            "s",
            {"{{source}}": _of("headrace_lake_lag_seconds")},
        ),
        Panel(
            "Log between the last cut and its end",
            "bytes",
            {"{{source}}": _of("headrace_lake_lag_bytes")},
        ),
        Panel("Changes applied", "ops", {"{{source}}": _rate("headrace_lake_rows_total")}),
        Panel("Cuts", "ops", {"{{source}}": _rate("headrace_lake_cuts_total")}),
        Panel(
            "Duration of a cut",
            "s",
            {
                f"p{share:g}": _quantile(share / 100, "headrace_lake_cut_seconds")
                for share in (50, 99)
            },
        ),
        Panel(
            "Files",
            "short",
            {
                "data {{source}}": _of("headrace_lake_data_files"),
                "deletes {{source}}": _of("headrace_lake_delete_files"),
            },
        ),
        Panel(
            "Deleted share of the rows in data files",
            "percentunit",
            {"{{source}}": _of("headrace_lake_deleted_ratio")},
            "Queries read deleted rows, too. Compaction removes them.",
        ),
        Panel(
            "Archive files that no cut shows",
            "short",
            {"{{source}}": _of("headrace_lake_behind_files")},
        ),
        Panel(
            "Tables, parked tables, copies, recoveries",
            "short",
            {
                "tables": _of("headrace_lake_tables"),
                "copies": _rare("headrace_lake_copies_total"),
                "parked": _of("headrace_lake_parked_tables"),
                "recoveries": _rare("headrace_lake_recoveries_total"),
            },
        ),
        Panel(
            "Rows of the current or last copy",
            "short",
            {"{{source}}": f"{_of('headrace_lake_copied_rows')} or on () vector(0)"},
        ),
        Panel("Last cut shows", "short", {"{{source}}": _of("headrace_lake_lsn")}),
    ),
)

AUDIT = Dashboard(
    "headrace-audit",
    "Headrace: audit trail (audit-writer)",
    (
        *_process("audit-writer"),
        Panel(
            "Messages not yet in the trail",
            "short",
            {"{{source}}": _of("headrace_audit_behind_messages")},
            "Includes messages that produce no row.",
        ),
        Panel(
            "Age of the oldest of these", "s", {"{{source}}": _of("headrace_audit_behind_seconds")}
        ),
        Panel(
            "Changes read",
            "ops",
            {"{{operation}}": _rate("headrace_audit_rows_total", by="operation")},
        ),
        Panel(
            "Transactions and commits",
            "ops",
            {
                "transactions {{source}}": _rate("headrace_audit_transactions_total"),
                "commits {{source}}": _rate("headrace_audit_commits_total"),
            },
        ),
        Panel(
            "Commit to row, latest change",
            "s",
            {"{{source}}": _of("headrace_audit_lag_seconds")},
        ),
        Panel(
            "Destination unavailable",
            "bool_yes_no",
            {"{{source}}": _away("audit-writer", "destination")},
            kind="state-timeline",
        ),
        Panel(
            "Gaps, recoveries, expired rows",
            "short",
            {
                "gaps": _rare("headrace_audit_gaps_total"),
                "recoveries": _rare("headrace_audit_recoveries_total"),
                "removed": _rare("headrace_audit_expired_total"),
            },
        ),
        Panel("Trail written up to", "short", {"{{source}}": _of("headrace_audit_lsn")}),
        Panel(
            "Reporting services",
            "bool_yes_no",
            {"{{source}}": _of("headrace_up", service="audit-writer")},
            "No: it has stopped. Its log contains the error, if there was one.",
            kind="state-timeline",
            width=24,
        ),
    ),
)

MIRROR = Dashboard(
    "headrace-mirror",
    "Headrace: mirror",
    (
        *_process("mirror"),
        Panel(
            "Messages not yet in the mirror",
            "short",
            {"{{source}}": _of("headrace_mirror_behind_messages")},
            "Includes messages of tables that the mirror doesn't follow.",
        ),
        Panel(
            "Age of the oldest of these", "s", {"{{source}}": _of("headrace_mirror_behind_seconds")}
        ),
        Panel("Events", "ops", {"{{source}}": _rate("headrace_mirror_events_total")}),
        Panel(
            "Rows copied by bootstraps", "ops", {"{{source}}": _rate("headrace_mirror_rows_total")}
        ),
        Panel(
            "Tables",
            "short",
            {
                "followed {{source}}": _of("headrace_mirror_tables"),
                "not followed {{source}}": _of("headrace_mirror_unfollowed"),
                "parked {{source}}": _of("headrace_mirror_parked"),
            },
            "Parked: the target rejects the table. The mirror's log gives the reason.",
        ),
        Panel(
            "Readers see the same moment for",
            "s",
            {"{{source}}": _of("headrace_mirror_standing_seconds")},
            "While a visible table is copied again.",
        ),
        Panel(
            "Bootstraps",
            "short",
            {
                "running {{source}}": _of("headrace_mirror_bootstrapping"),
                "waiting {{source}}": _of("headrace_mirror_waiting"),
                "done {{source}}": _rare("headrace_mirror_bootstraps_total"),
            },
        ),
        Panel(
            "Target unavailable",
            "bool_yes_no",
            {"{{source}}": _away("mirror", "target")},
            kind="state-timeline",
        ),
        Panel(
            "Copied again",
            "short",
            {
                "rows that were missing": _rare("headrace_mirror_mismatches_total"),
                "fallen behind the stream": _rare("headrace_mirror_retention_gaps_total"),
            },
        ),
        Panel("Stream read up to", "short", {"{{source}}": _of("headrace_mirror_stream_seq")}),
        Panel("Committed up to", "short", {"{{source}}": _of("headrace_mirror_lsn")}),
    ),
)

SQL = Dashboard(
    "headrace-sql",
    "Headrace: SQL (sql-server)",
    (
        *_process("sql-server"),
        Panel(
            "Clients",
            "short",
            {"{{source}}": f"{_of('headrace_sql_connections')} or on () vector(0)"},
        ),
        Panel(
            "Statements that read the lake",
            "ops",
            {"{{source}}": f"{_rate('headrace_sql_statements_total')} or on () vector(0)"},
        ),
        Panel(
            "Duration of a statement",
            "s",
            {
                f"p{share:g}": f"{_quantile(share / 100, 'headrace_sql_statement_seconds')} or on () vector(0)"
                for share in (50, 99)
            },
        ),
        Panel(
            "Rows sent",
            "ops",
            {"{{source}}": f"{_rate('headrace_sql_rows_total')} or on () vector(0)"},
        ),
        Panel(
            "Errors sent to clients",
            "ops",
            {
                "{{sqlstate}}": f"{_rate('headrace_sql_errors_total', by='sqlstate')} or on () vector(0)"
            },
            "0A000: a statement that the SQL server does not support.",
        ),
        Panel(
            "Age of the cut that clients see",
            "s",
            {"{{source}}": _of("headrace_sql_cut_age_seconds")},
            "Grows while the source writes nothing, since there is no later cut then.",
        ),
        Panel(
            "Log between the lake's last cut and the one that clients see",
            "bytes",
            {
                "{{source}}": f"max by (source) ({_of('headrace_lake_lsn')}) - max by (source) ({_of('headrace_sql_lsn')})"
            },
        ),
        Panel(
            "Time to show a cut",
            "s",
            {
                f"p{share:g}": f"{_quantile(share / 100, 'headrace_sql_cut_seconds')} or on () vector(0)"
                for share in (50, 99)
            },
        ),
        Panel(
            "Logins and ended connections",
            "short",
            {
                "logins": _rare("headrace_sql_logins_total"),
                "ended": _rare("headrace_sql_ended_connections_total"),
                "ended by a change of columns": _rare("headrace_sql_ended_sessions_total"),
                "ended by an unexpected error": _rare("headrace_sql_session_failures_total"),
            },
        ),
        Panel(
            "Cuts that could not be taken",
            "short",
            {"{{source}}": _rare("headrace_sql_recoveries_total")},
        ),
    ),
)

SINKS = Dashboard(
    "headrace-sinks",
    "Headrace: sinks",
    (
        *_process(_SINKS),
        Panel(
            "Messages not yet delivered",
            "short",
            {"{{service}}": _of("headrace_sink_behind_messages")},
            "Includes messages that the sink leaves out.",
        ),
        Panel(
            "Age of the oldest of these", "s", {"{{service}}": _of("headrace_sink_behind_seconds")}
        ),
        Panel(
            "Records",
            "ops",
            {"{{service}}": _rate("headrace_sink_records_total", "source, service")},
        ),
        Panel(
            "Transactions and commits",
            "ops",
            {
                "transactions {{service}}": _rate(
                    "headrace_sink_transactions_total", "source, service"
                ),
                "commits {{service}}": _rate("headrace_sink_commits_total", "source, service"),
            },
        ),
        Panel(
            "Duration of a commit (p99)",
            "s",
            {
                "{{service}}": f"histogram_quantile(0.99, {_rate('headrace_sink_commit_seconds_bucket', 'source, service, le')})"
            },
        ),
        Panel(
            "Target unavailable",
            "bool_yes_no",
            {"{{service}}": _away(_SINKS, "target")},
            kind="state-timeline",
        ),
        Panel(
            "Stopped at a refused record",
            "bool_yes_no",
            {"{{service}}": _away(_SINKS, "refused")},
            "With on_error = stop.",
            kind="state-timeline",
        ),
        Panel(
            "Refused, parked, lost by the stream, recoveries",
            "short",
            {
                "refused": _rare("headrace_sink_refused_total"),
                "parked": _rare("headrace_sink_parked_total"),
                "gaps": _rare("headrace_sink_gaps_total"),
                "recoveries": _rare("headrace_sink_recoveries_total"),
            },
        ),
        Panel(
            "Committed up to", "short", {"{{service}}": _of("headrace_sink_stream_seq")}, width=24
        ),
    ),
)

BACKUP = Dashboard(
    "headrace-backup",
    "Headrace: backups (wal-archiver)",
    (
        *_process("wal-archiver"),
        Panel(
            "Time that would be lost with the primary's disk",
            "s",
            {"{{source}}": _of("headrace_backup_lag_seconds")},
        ),
        Panel(
            "Log that only the server has",
            "bytes",
            {"{{source}}": _of("headrace_backup_unstored_bytes")},
        ),
        Panel(
            "Age of the newest base backup",
            "s",
            {"{{source}}": f"{_of('headrace_backup_age_seconds')} or on () vector(0)"},
            "0: there is none.",
        ),
        Panel(
            "Drills",
            "s",
            {
                "since one passed {{source}}": f"{_of('headrace_backup_drill_age_seconds')} or on () vector(0)"
            },
            "0: none ever did. A drill restores the cluster and compares it with the source.",
        ),
        Panel("Log stored", "Bps", {"{{source}}": _rate("headrace_backup_log_bytes_total")}),
        Panel("Objects stored", "ops", {"{{source}}": _rate("headrace_backup_log_objects_total")}),
        Panel("Log is stored up to", "short", {"{{source}}": _of("headrace_backup_stored_lsn")}),
        Panel(
            "Holes and recoveries",
            "short",
            {
                "holes {{source}}": f"{_of('headrace_backup_holes')} or on () vector(0)",
                "recoveries": _rare("headrace_backup_recoveries_total"),
            },
            "Moments in a hole can't be restored. See the runbook HeadraceBackupHole.",
        ),
    ),
)

CONSOLE = Dashboard(
    "headrace-console",
    "Headrace: console",
    (
        *_process("console"),
        Panel(
            "Requests",
            "ops",
            {"{{source}}": f"{_rate('headrace_console_requests_total')} or on () vector(0)"},
        ),
        Panel(
            "Refused requests in ten minutes",
            "short",
            {
                "{{code}}": "sum by (code) (increase(headrace_console_refusals_total"
                '{source=~"$source"}[10m])) or on () vector(0)'
            },
            "sign_in: a missing or wrong token. HeadraceConsoleRefusals fires above 30.",
        ),
        Panel(
            "Acts in ten minutes",
            "short",
            {
                "{{act}}": "sum by (act) (increase(headrace_console_acts_total"
                '{source=~"$source"}[10m])) or on () vector(0)'
            },
            "The log of acts has who did what.",
        ),
        Panel(
            "Tabs that follow live",
            "short",
            {"{{source}}": f"{_of('headrace_console_live_tabs')} or on () vector(0)"},
        ),
        Panel(
            "Messages kept for tabs",
            "short",
            {"{{source}}": f"{_of('headrace_console_ring_messages')} or on () vector(0)"},
        ),
    ),
)

DASHBOARDS = (
    OVERVIEW,
    READER,
    PUBLISHER,
    SNAPSHOTS,
    SCHEMAS,
    TELEMETRY,
    SLOT,
    JETSTREAM,
    ARCHIVE,
    LAKE,
    SQL,
    SINKS,
    BACKUP,
    AUDIT,
    MIRROR,
    CONSOLE,
)


def _placed(panels: tuple[Panel, ...]) -> Iterator[tuple[Panel, dict[str, int]]]:
    """Places panels from left to right, row by row."""
    x = y = row = 0
    for panel in panels:
        height = 4 if panel.kind == "stat" else _HEIGHT
        if x + panel.width > _WIDTH:
            x, y, row = 0, y + row, 0
        yield panel, {"x": x, "y": y, "w": panel.width, "h": height}
        x, row = x + panel.width, max(row, height)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "expr": query,
            "legendFormat": legend,
            "datasource": SOURCE,
        }
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"showLegend": True, "displayMode": "list"}}
        if panel.kind == "timeseries"
        else {},
        "targets": targets,
    }


def rendered(dashboard: Dashboard) -> str:
    """The JSON that Grafana reads."""
    panels = [_panel(number, *placed) for number, placed in enumerate(_placed(dashboard.panels), 1)]
    variable = {
        "name": "source",
        "label": "Slot",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(headrace_up, source)", "refId": "source"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }
    body = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["headrace"],
        "timezone": "browser",
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["headrace"], "asDropdown": True, "title": "Headrace"}
        ],
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def path(dashboard: Dashboard) -> Path:
    return FOLDER / f"{dashboard.uid.removeprefix('headrace-')}.json"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        path(dashboard).write_text(rendered(dashboard))


if __name__ == "__main__":
    main()
