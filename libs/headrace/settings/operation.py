"""Settings of what is the same in every process, and of monitoring."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.log import LogFormat
from headrace.settings.choices import Accelerator, OtlpProtocol
from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Intervals of periodic checks, and the thresholds of warnings."""

    metrics_interval_s: float = setting(
        "HEADRACE_METRICS_INTERVAL_S",
        15.0,
        "Seconds between the `METRICS` lines that telemetry prints on stdout.",
        least=0.1,
    )
    slot_interval_s: float = setting(
        "HEADRACE_SLOT_INTERVAL_S",
        1.0,
        "Seconds between telemetry's queries of the replication slot's state. If a query takes "
        "longer than a second, the console reports that PostgreSQL doesn't answer.",
        least=0.05,
    )
    wal_interval_s: float = setting(
        "HEADRACE_WAL_INTERVAL_S",
        30.0,
        "Seconds between checks of the slot's lag against the thresholds below. Each check logs at "
        "most one warning or error.",
        least=0.05,
    )
    wal_warning_bytes: int = setting(
        "HEADRACE_WAL_WARNING_BYTES",
        512 * MIB,
        "Lag of the slot in bytes from which telemetry warns. Set it above the WAL of one "
        "`HEADRACE_JETSTREAM_SYNC_S` when `HEADRACE_DURABILITY=sync`.",
        least=1,
    )
    wal_critical_bytes: int = setting(
        "HEADRACE_WAL_CRITICAL_BYTES",
        1024 * MIB,
        "Lag of the slot in bytes that telemetry reports as critical, at error level.",
        least=1,
    )
    wal_loss_warning_s: float = setting(
        "HEADRACE_WAL_LOSS_WARNING_S",
        3600.0,
        "Telemetry warns when PostgreSQL is projected to invalidate the slot within this many "
        "seconds. Applies when PostgreSQL's `max_slot_wal_keep_size` is set. 0 turns the warning "
        "off.",
        least=0,
    )
    stream_interval_s: float = setting(
        "HEADRACE_STREAM_INTERVAL_S",
        10.0,
        "Seconds between telemetry's checks of streams and their durable consumers.",
        least=0.05,
    )
    consumer_left_min: float = setting(
        "HEADRACE_CONSUMER_LEFT_MIN",
        0.25,
        "Telemetry warns when a durable consumer has less than this share of the stream's "
        "retention left (1: at the stream's end, 0: about to lose events).",
        least=0,
    )
    catalog_interval_s: float = setting(
        "HEADRACE_CATALOG_INTERVAL_S",
        5.0,
        "Seconds between comparisons of PostgreSQL's catalog with the published schemas. A change "
        "without rows, such as a new table, is noticed within this time.",
        least=0.05,
    )


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """Export to OpenTelemetry over OTLP, for the whole suite. Needs the extra `otel`."""

    endpoint: str | None = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        None,
        "URL of the collector, such as `http://collector:4318` (or `:4317` for gRPC). If unset, "
        "nothing is exported.",
    )
    protocol: OtlpProtocol = setting(
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        OtlpProtocol.HTTP,
        "Transport to the collector. Use the port that belongs to it: usually 4318 for "
        "`http/protobuf` and 4317 for `grpc`.",
    )
    headers: str | None = setting(
        "OTEL_EXPORTER_OTLP_HEADERS",
        None,
        "Headers to send with each export, as `name=value,name=value`; for example an API key.",
        secret=True,
    )
    interval_s: float = setting(
        "HEADRACE_OTEL_INTERVAL_S", 15.0, "Seconds between exports.", least=0.1
    )
    trace_every: int = setting(
        "HEADRACE_OTEL_TRACE_EVERY",
        0,
        "Trace every nth frame: 100 traces one in a hundred. A smaller number gives more detail "
        "and more spans. 0 turns tracing off.",
        least=0,
    )


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Logging, the HTTP port and shutdown, the same for every service."""

    log_level: str = setting(
        "HEADRACE_LOG_LEVEL",
        "info",
        "Lowest level of log events to print: `debug`, `info`, `warning` or `error`. `debug` names "
        "every frame on its way.",
    )
    log_format: LogFormat = setting(
        "HEADRACE_LOG_FORMAT",
        LogFormat.LOGFMT,
        "Format of log lines on stderr.",
    )
    # Read by the extension itself, before any settings are.
    accelerator: Accelerator = setting(
        "HEADRACE_ACCELERATOR",
        Accelerator.AUTO,
        "`auto`: the publisher reads rows and writes messages in C, if a C compiler was there when "
        "Headrace was installed. `off`: it does so in Python, which gives the same bytes and takes "
        "two to three times as much processor time.",
    )
    http_host: str = setting(
        "HEADRACE_HTTP_HOST",
        "127.0.0.1",
        "Address that the HTTP port (health, metrics, telemetry's pages) is bound to. On any "
        "address but loopback, requests that change state need `HEADRACE_SHUTDOWN_TOKEN`.",
    )
    http_port: int | None = setting(
        "HEADRACE_HTTP_PORT",
        None,
        "HTTP port of the service. 0 picks a free port. If unset, each service uses its own: "
        "telemetry 9090, wal-reader 9091, publisher 9092, snapshot-responder 9093, "
        "schema-publisher 9094, archiver 9095, audit-writer 9096, lake-writer 9097, sql-server "
        "9099, wal-archiver 9089, console 9087, sink 9088.",
        least=0,
    )
    telemetry_url: str | None = setting(
        "HEADRACE_TELEMETRY_URL",
        None,
        "Address of telemetry, such as `http://telemetry:9090`, for the console, `headrace status` "
        "and `headrace top`. If unset, port 9090 of this machine.",
    )
    stats_interval_s: float = setting(
        "HEADRACE_STATS_INTERVAL_S",
        1.0,
        "Seconds between a service's reports to telemetry. A service that misses several reports "
        "counts as down, so set the same value for all services.",
        least=0.05,
    )
    shutdown_timeout_s: float = setting(
        "HEADRACE_SHUTDOWN_TIMEOUT_S",
        10.0,
        "Seconds that an orderly stop may take. After that the process exits immediately; "
        "nothing is "
        "lost, but unconfirmed work is repeated at the next start.",
        least=0.1,
    )
    shutdown_token: str | None = setting(
        "HEADRACE_SHUTDOWN_TOKEN",
        None,
        "Token that authorizes stopping, pausing and resuming a suite. When it is set, these "
        "commands must be signed with it; set it for all services and for the command line.",
        secret=True,
    )
