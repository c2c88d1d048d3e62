"""Settings: one declaration each, read from flags and the environment, checked before any I/O.

Owns every setting's name, default, unit and explanation: the command line, the reference page and
the error messages are made from these declarations. A secret `X` may also come from the file that
`X_FILE` names. Hand-written on dataclasses because pydantic-settings would take a sixth of a
service's memory budget (docs/adr/0007).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from headrace.contract.table_names import listed
from headrace.contract.values import ArrayForm, Encoding, JsonForm
from headrace.errors import SettingError
from headrace.log import LogFormat

T = TypeVar("T")
_MIB = 1024 * 1024
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def setting(
    env: str, default: Any, explain: str, *, secret: bool = False, least: float | None = None
) -> Any:
    """Declare a field that the environment variable `env` sets. What may hold a secret is not in
    its `repr`.
    """
    shown = not secret and env != "NATS_URL"
    return field(
        default=default,
        repr=shown,
        metadata={"env": env, "help": explain, "secret": secret, "least": least},
    )


class Retention(StrEnum):
    RELAXED = "relaxed"
    STRICT = "strict"


class SnapshotValues(StrEnum):
    """Values in the contract's forms, or every one as COPY prints it."""

    TYPED = "typed"
    TEXT = "text"


class DeliveryMode(StrEnum):
    EVENT = "event"
    BATCH = "batch"
    TRANSACTION = "transaction"


class IngestMode(StrEnum):
    """How messages are acknowledged: many at once where the server can, or each one."""

    AUTO = "auto"
    FAST = "fast"
    CHAIN = "chain"


class Poison(StrEnum):
    STOP = "stop"
    PARK = "park"


class Durability(StrEnum):
    """When an LSN is confirmed: acknowledged by JetStream, or on its disk too."""

    ACK = "ack"
    SYNC = "sync"


class OtlpProtocol(StrEnum):
    """How a collector is talked to, in OpenTelemetry's own words."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


class Compat(StrEnum):
    NONE = "none"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """Where the source is. What is unset here, libpq's own variables (PGHOST, PGSSLMODE,
    PGSERVICE…) decide.
    """

    host: str | None = setting("PG_HOST", None, "PostgreSQL's host (else PGHOST, else localhost)")
    port: int | None = setting(
        "PG_PORT", None, "PostgreSQL's port (else PGPORT, else 5432)", least=1
    )
    database: str | None = setting(
        "PG_DB", None, "the database whose changes are read (else PGDATABASE)"
    )
    user: str | None = setting(
        "POSTGRES_BRIDGE_USER", None, "a role with REPLICATION (else PGUSER)"
    )
    password: str | None = setting(
        "POSTGRES_BRIDGE_PASSWORD", None, "its password (else PGPASSFILE)", secret=True
    )
    connect_timeout_s: int = setting(
        "HEADRACE_PG_CONNECT_TIMEOUT_S", 10, "how long a connection may take", least=1
    )


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """Where NATS is, and who we are there."""

    url: str | None = setting("NATS_URL", None, "NATS URLs, comma-separated; wins over NATS_HOST")
    host: str = setting("NATS_HOST", "localhost", "NATS host, or host:port")
    user: str | None = setting("NATS_BRIDGE_USER", None, "NATS user")
    password: str | None = setting("NATS_BRIDGE_PASSWORD", None, "its password", secret=True)
    token: str | None = setting(
        "NATS_TOKEN", None, "NATS token, instead of user and password", secret=True
    )
    credentials: Path | None = setting("NATS_CREDS", None, "NATS credentials file (JWT)")
    nkey_seed: Path | None = setting("NATS_NKEY_SEED", None, "NATS nkey seed file")
    tls_ca: Path | None = setting(
        "NATS_TLS_CA", None, "certificate authority for NATS; turns TLS on"
    )
    tls_cert: Path | None = setting("NATS_TLS_CERT", None, "client certificate for NATS")
    tls_key: Path | None = setting("NATS_TLS_KEY", None, "its key")
    inbox_prefix: str | None = setting(
        "NATS_INBOX_PREFIX", None, "where answers come, if not below _INBOX"
    )
    reconnect_wait_s: float = setting(
        "HEADRACE_NATS_RECONNECT_WAIT_S", 2.0, "pause between reconnects", least=0.01
    )
    ping_interval_s: float = setting(
        "HEADRACE_NATS_PING_INTERVAL_S", 5.0, "after three silent ones: dead", least=0.1
    )
    flush_timeout_s: float = setting(
        "HEADRACE_NATS_FLUSH_TIMEOUT_S", 10.0, "how long a flush may take", least=0.1
    )


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What is read: the slot is the source's name everywhere."""

    slot: str = setting("HEADRACE_SLOT", "headrace", "replication slot; also the source's name")
    publication: str = setting("HEADRACE_PUB", "headrace", "publication to read")
    create_slot: bool = setting("HEADRACE_CREATE_SLOT", True, "create the slot when it is missing")
    recreate_slot: bool = setting(
        "HEADRACE_RECREATE_SLOT", False, "replace a lost slot; what is missing is told"
    )
    failover: bool = setting(
        "HEADRACE_SLOT_FAILOVER", False, "create it as a failover slot (PostgreSQL 17+)"
    )


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The NATS objects, and how long they keep what."""

    cdc: str = setting("HEADRACE_STREAM", "CDC", "stream of change events")
    init: str = setting("HEADRACE_INIT_STREAM", "INIT", "stream of snapshot chunks")
    requests: str = setting(
        "HEADRACE_REQUEST_STREAM", "SNAPSHOT_REQUESTS", "work queue of snapshot requests"
    )
    schemas: str = setting("HEADRACE_SCHEMAS_BUCKET", "schemas", "KV bucket of table schemas")
    state: str = setting(
        "HEADRACE_STATE_BUCKET", "headrace_state", "KV bucket of the suite's own state"
    )
    large: str = setting(
        "HEADRACE_LARGE_BUCKET", "headrace_large", "object store of events too large for a message"
    )
    parked: str = setting(
        "HEADRACE_PARKED_BUCKET", "headrace_parked", "object store of changes that were put aside"
    )
    replicas: int = setting(
        "HEADRACE_REPLICAS", 1, "JetStream replicas of everything created", least=1
    )
    cdc_age_max_s: int = setting(
        "HEADRACE_CDC_AGE_MAX_S", 86_400, "how long events are kept", least=1
    )
    cdc_bytes_max: int = setting(
        "HEADRACE_CDC_BYTES_MAX", 8192 * _MIB, "how many bytes of events are kept", least=1
    )
    init_age_max_s: int = setting(
        "HEADRACE_INIT_AGE_MAX_S", 604_800, "how long snapshots are kept", least=1
    )
    dedupe_window_s: float = setting(
        "HEADRACE_DEDUPE_WINDOW_S", 5.0, "duplicate window; nothing needs it", least=0.1
    )
    retention: Retention = setting(
        "HEADRACE_RETENTION", Retention.RELAXED, "strict: a full stream holds the slot"
    )


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """How messages are written."""

    encoding: Encoding = setting("HEADRACE_ENCODING", Encoding.MSGPACK, "msgpack or json")
    arrays: ArrayForm = setting(
        "HEADRACE_ARRAYS", ArrayForm.LITERAL, "literal (PostgreSQL's) or list"
    )
    json_values: JsonForm = setting(
        "HEADRACE_JSON_VALUES", JsonForm.NATIVE, "native or text, for json and jsonb"
    )
    int8_as_string: bool = setting(
        "HEADRACE_INT8_AS_STRING", False, "with JSON: bigint as strings, for browsers"
    )
    message_prefixes: tuple[str, ...] = setting(
        "HEADRACE_MESSAGE_PREFIXES", (), "of pg_logical_emit_message, delivered"
    )
    include: tuple[str, ...] = setting(
        "HEADRACE_INCLUDE", (), "tables to deliver: table, schema.table, schema.*"
    )
    exclude: tuple[str, ...] = setting(
        "HEADRACE_EXCLUDE", (), "tables to leave out, in the same forms"
    )
    exclude_columns: tuple[str, ...] = setting(
        "HEADRACE_EXCLUDE_COLUMNS", (), "columns to leave out: table.column"
    )
    zstd: bool = setting("HEADRACE_ZSTD", False, "compress snapshot chunks with zstd")
    zstd_events: bool = setting(
        "HEADRACE_ZSTD_EVENTS", False, "compress single events, with a dictionary per table"
    )


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How events become JetStream messages."""

    mode: DeliveryMode = setting(
        "HEADRACE_DELIVERY", DeliveryMode.EVENT, "event, batch or transaction"
    )
    compat: Compat = setting(
        "HEADRACE_COMPAT", Compat.NONE, "bridge: exactly the PG→NATS bridge's messages"
    )
    ingest: IngestMode = setting(
        "HEADRACE_INGEST", IngestMode.AUTO, "auto: fast from nats-server 2.14 on, else chain"
    )
    poison: Poison = setting(
        "HEADRACE_POISON", Poison.STOP, "park: put a change aside that can't be read, go on"
    )
    batch_events_max: int = setting("HEADRACE_BATCH_EVENTS_MAX", 500, "events of a batch", least=1)
    batch_bytes_max: int = setting(
        "HEADRACE_BATCH_BYTES_MAX", 256 * 1024, "bytes of a batch", least=1024
    )
    batch_age_max_s: float = setting(
        "HEADRACE_BATCH_AGE_MAX_S", 0.1, "a batch waits no longer", least=0.001
    )
    atomic_messages_max: int = setting(
        "HEADRACE_ATOMIC_MESSAGES_MAX", 1000, "at most nats-server's own limit", least=1
    )
    atomic_bytes_max: int = setting(
        "HEADRACE_ATOMIC_BYTES_MAX", 16 * _MIB, "bytes held for one", least=65_536
    )
    durability: Durability = setting(
        "HEADRACE_DURABILITY", Durability.ACK, "sync: confirm what JetStream has synced"
    )
    sync_interval_s: float = setting(
        "HEADRACE_JETSTREAM_SYNC_S", 120.0, "nats-server's sync_interval", least=0.1
    )

    @property
    def hold_s(self) -> float:
        """How long what is acknowledged is kept from being confirmed."""
        return self.sync_interval_s if self.durability is Durability.SYNC else 0.0


@dataclass(frozen=True, slots=True)
class BusSettings:
    """The internal bus between wal-reader and publisher."""

    frame_bytes_max: int = setting(
        "HEADRACE_FRAME_BYTES_MAX", 256 * 1024, "a frame is sent at this size", least=1024
    )
    in_flight_bytes_max: int = setting(
        "HEADRACE_IN_FLIGHT_BYTES_MAX", 2 * _MIB, "unconsumed bytes", least=65_536
    )
    status_interval_s: float = setting(
        "HEADRACE_STATUS_INTERVAL_S", 1.0, "status to PostgreSQL", least=0.05
    )
    window_messages_max: int = setting(
        "HEADRACE_WINDOW_MESSAGES_MAX", 4096, "unacknowledged messages", least=1
    )
    window_bytes_max: int = setting(
        "HEADRACE_WINDOW_BYTES_MAX", 8 * _MIB, "unacknowledged bytes", least=65_536
    )
    ack_timeout_s: float = setting(
        "HEADRACE_ACK_TIMEOUT_S", 10.0, "JetStream's acknowledgement", least=0.1
    )
    progress_interval_s: float = setting(
        "HEADRACE_PROGRESS_INTERVAL_S", 1.0, "progress kept this often", least=0.02
    )
    lease_ttl_s: float = setting(
        "HEADRACE_LEASE_TTL_S", 6.0, "a silent holder loses its lease", least=0.5
    )


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """How tables are copied, and through which Spark."""

    spark_remote: str | None = setting(
        "SPARK_REMOTE", None, "a Spark Connect server (sc://…); else a local Spark"
    )
    spark_master: str = setting(
        "HEADRACE_SPARK_MASTER", "local[2,4]", "Spark's master without SPARK_REMOTE"
    )
    spark_memory_mib: int = setting(
        "HEADRACE_SPARK_MEMORY_MIB", 512, "heap of the local Spark's JVM", least=512
    )
    spark_start_timeout_s: float = setting(
        "HEADRACE_SPARK_START_TIMEOUT_S", 90.0, "how long its start may take", least=1
    )
    spark_idle_s: float = setting(
        "HEADRACE_SPARK_IDLE_S", 300.0, "an unused Spark is stopped after this", least=0.1
    )
    spark_losses_max: int = setting(
        "HEADRACE_SPARK_LOSSES_MAX", 2, "a lost Spark is started again so often", least=0
    )
    values: SnapshotValues = setting(
        "HEADRACE_SNAPSHOT_VALUES", SnapshotValues.TYPED, "text: as COPY prints them"
    )
    parallel_max: int = setting("HEADRACE_SNAPSHOTS_PARALLEL_MAX", 2, "snapshots at once", least=1)
    requests_max: int = setting(
        "HEADRACE_SNAPSHOT_REQUESTS_MAX", 1000, "requests held at once", least=1
    )
    attempts_max: int = setting(
        "HEADRACE_SNAPSHOT_ATTEMPTS_MAX", 3, "attempts at a request over restarts", least=1
    )
    chunk_rows_max: int = setting(
        "HEADRACE_CHUNK_ROWS_MAX", 10_000, "rows in a snapshot's chunk", least=1
    )
    range_bytes: int = setting(
        "HEADRACE_SNAPSHOT_RANGE_BYTES", 32 * _MIB, "storage that one COPY reads", least=8192
    )
    tasks_max: int = setting(
        "HEADRACE_SNAPSHOT_TASKS_MAX",
        16,
        "Spark tasks of one snapshot; each reads on one connection",
        least=1,
    )
    rate_bytes_s_max: int | None = setting(
        "HEADRACE_SNAPSHOT_RATE_BYTES_S_MAX",
        None,
        "all snapshots together read no more rows than that",
        least=1,
    )
    copy_timeout_s: float = setting(
        "HEADRACE_SNAPSHOT_COPY_TIMEOUT_S",
        3600.0,
        "one COPY may take so long (0: any time)",
        least=0,
    )
    slot_wait_s: float = setting(
        "HEADRACE_SNAPSHOT_SLOT_WAIT_S", 60.0, "wait for older transactions", least=0.1
    )
    ack_wait_s: float = setting(
        "HEADRACE_SNAPSHOT_ACK_WAIT_S", 30.0, "an abandoned request comes again", least=1
    )
    progress_interval_s: float = setting(
        "HEADRACE_SNAPSHOT_PROGRESS_S", 1.0, "progress is told this often", least=0.05
    )


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The log as files in object storage. With a required archive, PostgreSQL's slot waits for what
    it holds.
    """

    url: str | None = setting(
        "HEADRACE_ARCHIVE_URL", None, "where: file:///…, s3://…, gs://…, az://…; unset: none"
    )
    required: bool = setting(
        "HEADRACE_ARCHIVE_REQUIRED", False, "the slot keeps all that the archive lacks"
    )
    patience_s: float = setting(
        "HEADRACE_ARCHIVE_PATIENCE_S", 10.0, "an optional one is awaited so long", least=0.1
    )
    file_rows_max: int = setting(
        "HEADRACE_ARCHIVE_FILE_ROWS_MAX", 500_000, "changes in a file", least=1
    )
    file_bytes_max: int = setting(
        "HEADRACE_ARCHIVE_FILE_BYTES_MAX", 32 * _MIB, "bytes of rows in one", least=1024
    )
    file_age_max_s: float = setting(
        "HEADRACE_ARCHIVE_FILE_AGE_MAX_S", 2.0, "a file waits no longer", least=0.01
    )
    put_timeout_s: float = setting(
        "HEADRACE_ARCHIVE_PUT_TIMEOUT_S", 30.0, "one request to the store", least=0.1
    )
    keep_s: int | None = setting(
        "HEADRACE_ARCHIVE_KEEP_S", None, "files older than this are removed", least=1
    )


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How often the suite looks at what it is not told about, and what it calls too much."""

    metrics_interval_s: float = setting(
        "HEADRACE_METRICS_INTERVAL_S", 15.0, "the METRICS line", least=0.1
    )
    slot_interval_s: float = setting(
        "HEADRACE_SLOT_INTERVAL_S", 2.0, "the slot's state is read", least=0.05
    )
    wal_interval_s: float = setting(
        "HEADRACE_WAL_INTERVAL_S", 30.0, "the slot's lag is judged", least=0.05
    )
    wal_warning_bytes: int = setting(
        "HEADRACE_WAL_WARNING_BYTES", 512 * _MIB, "a lag to warn about", least=1
    )
    wal_critical_bytes: int = setting(
        "HEADRACE_WAL_CRITICAL_BYTES", 1024 * _MIB, "a critical lag", least=1
    )
    wal_loss_warning_s: float = setting(
        "HEADRACE_WAL_LOSS_WARNING_S", 3600.0, "projected loss of the slot", least=0
    )
    stream_interval_s: float = setting(
        "HEADRACE_STREAM_INTERVAL_S", 10.0, "streams, consumers are read", least=0.05
    )
    consumer_left_min: float = setting(
        "HEADRACE_CONSUMER_LEFT_MIN", 0.25, "share of retention left: warn", least=0
    )
    catalog_interval_s: float = setting(
        "HEADRACE_CATALOG_INTERVAL_S", 5.0, "tables are compared", least=0.05
    )


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """OpenTelemetry, sent by telemetry for the whole suite over OTLP. Needs the extra `otel`."""

    endpoint: str | None = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT", None, "such as http://collector:4318; unset: none"
    )
    protocol: OtlpProtocol = setting(
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        OtlpProtocol.HTTP,
        "http/protobuf, or grpc (such as http://collector:4317)",
    )
    headers: str | None = setting(
        "OTEL_EXPORTER_OTLP_HEADERS", None, "with each: name=value,name=value", secret=True
    )
    interval_s: float = setting("HEADRACE_OTEL_INTERVAL_S", 15.0, "sent this often", least=0.1)
    trace_every: int = setting(
        "HEADRACE_OTEL_TRACE_EVERY", 0, "of so many frames one is traced; 0: none", least=0
    )


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What every process has."""

    log_level: str = setting("HEADRACE_LOG_LEVEL", "info", "debug, info, warning or error")
    log_format: LogFormat = setting("HEADRACE_LOG_FORMAT", LogFormat.LOGFMT, "logfmt or json")
    http_host: str = setting(
        "HEADRACE_HTTP_HOST", "127.0.0.1", "address of the health and metrics port"
    )
    http_port: int | None = setting(
        "HEADRACE_HTTP_PORT", None, "that port; 0 takes a free one", least=0
    )
    stats_interval_s: float = setting(
        "HEADRACE_STATS_INTERVAL_S", 1.0, "reports to telemetry", least=0.05
    )
    shutdown_timeout_s: float = setting(
        "HEADRACE_SHUTDOWN_TIMEOUT_S", 10.0, "how long a stop may take", least=0.1
    )
    shutdown_token: str | None = setting(
        "HEADRACE_SHUTDOWN_TOKEN", None, "for whoever stops or pauses", secret=True
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a process."""

    postgres: PostgresSettings = field(default_factory=PostgresSettings)
    nats: NatsSettings = field(default_factory=NatsSettings)
    source: SourceSettings = field(default_factory=SourceSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    format: FormatSettings = field(default_factory=FormatSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    bus: BusSettings = field(default_factory=BusSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
    otel: OtelSettings = field(default_factory=OtelSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)


def load(environ: Mapping[str, str], **flags: object) -> Settings:
    """Settings from the environment; a flag `group__name` that isn't None wins over it."""
    groups = {}
    for group in fields(Settings):
        kind = get_type_hints(Settings)[group.name]
        given = {
            name.removeprefix(f"{group.name}__"): value
            for name, value in flags.items()
            if name.startswith(f"{group.name}__") and value is not None
        }
        groups[group.name] = load_group(kind, environ, given)
    settings = Settings(**groups)
    _check_names(settings)
    _check_delivery(settings.delivery)
    if settings.delivery.compat is Compat.BRIDGE:
        # The bridge's snapshots have COPY's texts.
        settings = replace(
            settings, snapshot=replace(settings.snapshot, values=SnapshotValues.TEXT)
        )
    return settings


def load_group(kind: type[T], environ: Mapping[str, str], given: Mapping[str, object]) -> T:
    """One group, from flags first, then the environment, then defaults."""
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for declared in fields(kind):  # type: ignore[arg-type]  # T is always one of the dataclasses above
        if declared.name in given:
            values[declared.name] = given[declared.name]
            continue
        raw = _raw(declared, environ)
        if raw is not None:
            values[declared.name] = _parse(declared.metadata["env"], raw, hints[declared.name])
        _check_least(declared, values)
    return kind(**values)


def _raw(declared: dataclasses.Field[Any], environ: Mapping[str, str]) -> str | None:
    env = declared.metadata["env"]
    if env in environ:
        return environ[env]
    file = environ.get(f"{env}_FILE") if declared.metadata["secret"] else None
    if file is None:
        return None
    try:
        return Path(file).read_text().rstrip("\n")
    except OSError as error:
        raise SettingError(
            f"{env}_FILE={file!r} can't be read: {error.strerror}",
            remedy="Name a readable file that holds the secret.",
        ) from error


def _parse(env: str, raw: str, hint: Any) -> object:
    kind = (
        next(t for t in get_args(hint) if t is not type(None))
        if isinstance(hint, UnionType)
        else hint
    )
    try:
        if kind is bool:
            return _parse_bool(raw)
        if get_origin(kind) is tuple:
            return listed(raw)
        return kind(raw)
    except ValueError as error:
        raise SettingError(
            f"{env}={raw!r} can't be used", remedy=f"Set {env} to {_expected(kind)}."
        ) from error


def _parse_bool(raw: str) -> bool:
    if raw.lower() in _TRUE:
        return True
    if raw.lower() in _FALSE:
        return False
    raise ValueError(raw)


def _expected(kind: type) -> str:
    if issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(
        kind, "a value of its kind"
    )


def _check_least(declared: dataclasses.Field[Any], values: Mapping[str, object]) -> None:
    least, value = declared.metadata["least"], values.get(declared.name)
    if least is not None and isinstance(value, int | float) and value < least:
        env = declared.metadata["env"]
        raise SettingError(f"{env}={value} is too small", remedy=f"Set {env} to {least} or more.")


def _check_names(settings: Settings) -> None:
    slot = settings.source.slot
    if (
        not slot
        or len(slot) > 63
        or not all(c in "abcdefghijklmnopqrstuvwxyz0123456789_" for c in slot)
    ):
        raise SettingError(
            f"--slot {slot!r} is not a slot name",
            remedy="Use 1 to 63 lower-case letters, digits and underscores (HEADRACE_SLOT).",
        )
    for env, name in (
        ("HEADRACE_STREAM", settings.streams.cdc),
        ("HEADRACE_INIT_STREAM", settings.streams.init),
        ("HEADRACE_REQUEST_STREAM", settings.streams.requests),
        ("HEADRACE_SCHEMAS_BUCKET", settings.streams.schemas),
        ("HEADRACE_STATE_BUCKET", settings.streams.state),
        ("HEADRACE_LARGE_BUCKET", settings.streams.large),
        ("HEADRACE_PARKED_BUCKET", settings.streams.parked),
    ):
        if not name or not all(c.isascii() and (c.isalnum() or c in "_-") for c in name):
            raise SettingError(
                f"{env}={name!r} is not a NATS name", remedy="Use letters, digits, - and _."
            )


def _check_delivery(delivery: DeliverySettings) -> None:
    if delivery.compat is Compat.BRIDGE and delivery.mode is not DeliveryMode.EVENT:
        raise SettingError(
            f"--compat bridge doesn't go with --delivery {delivery.mode}",
            remedy="The bridge has one message for each event: leave HEADRACE_DELIVERY at event.",
        )
