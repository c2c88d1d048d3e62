"""Settings of the replication source, and of the JetStream objects that a suite creates."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.choices import Retention
from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The replication slot, whose name identifies the source everywhere, and the publication."""

    slot: str = setting(
        "HEADRACE_SLOT",
        "headrace",
        "Replication slot to read: 1 to 63 lower-case letters, digits and underscores. It is also "
        "the source's name in events, subjects and metrics. Each suite needs its own slot.",
    )
    publication: str = setting(
        "HEADRACE_PUB",
        "headrace",
        "Publication to read. It decides which tables, operations, columns and rows PostgreSQL "
        "sends.",
    )
    create_slot: bool = setting(
        "HEADRACE_CREATE_SLOT",
        True,
        "Create the slot when it doesn't exist. Set it to `false` when a missing slot should be an "
        "error, for example where slots are managed by hand.",
    )
    recreate_slot: bool = setting(
        "HEADRACE_RECREATE_SLOT",
        False,
        "Replace a slot that PostgreSQL invalidated. Delivery resumes automatically, and a gap "
        "event reports the range of changes that was lost. When `false`, wal-reader stops with an "
        "error instead.",
    )
    failover: bool = setting(
        "HEADRACE_SLOT_FAILOVER",
        False,
        "Create the slot as a failover slot, so that it exists on a promoted standby. Requires "
        "PostgreSQL 17 or newer and slot synchronization on the standby.",
    )


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """JetStream streams, buckets and object stores: their names, replicas and retention."""

    cdc: str = setting(
        "HEADRACE_STREAM",
        "CDC",
        "Name of the stream of change events. Suites of several slots may share it.",
    )
    init: str = setting("HEADRACE_INIT_STREAM", "INIT", "Name of the stream of snapshot chunks.")
    requests: str = setting(
        "HEADRACE_REQUEST_STREAM",
        "SNAPSHOT_REQUESTS",
        "Name of the work-queue stream of snapshot requests.",
    )
    schemas: str = setting(
        "HEADRACE_SCHEMAS_BUCKET",
        "schemas",
        "Name of the key-value bucket that contains the current schema of every table.",
    )
    state: str = setting(
        "HEADRACE_STATE_BUCKET",
        "headrace_state",
        "Name of the key-value bucket for the suite's internal state: leases, resume points, "
        "pauses and compression dictionaries. Consumers of compressed events read it too.",
    )
    large: str = setting(
        "HEADRACE_LARGE_BUCKET",
        "headrace_large",
        "Name of the object store for events and rows that exceed NATS's maximum payload.",
    )
    parked: str = setting(
        "HEADRACE_PARKED_BUCKET",
        "headrace_parked",
        "Name of the object store for changes that were parked (`HEADRACE_POISON=park`).",
    )
    replicas: int = setting(
        "HEADRACE_REPLICAS",
        1,
        "JetStream replicas of every stream and bucket that Headrace creates. 3 survives the loss "
        "of one server, and requires a cluster of three; each acknowledgement then waits for a "
        "quorum. Existing streams keep their number.",
        least=1,
    )
    cdc_age_max_s: int = setting(
        "HEADRACE_CDC_AGE_MAX_S",
        86_400,
        "Seconds that change events are retained. A consumer that is offline longer misses events "
        "and must be copied again. A larger value needs more disk in NATS.",
        least=1,
    )
    cdc_bytes_max: int = setting(
        "HEADRACE_CDC_BYTES_MAX",
        8192 * MIB,
        "Maximum size of the change stream in bytes. When it is reached, `HEADRACE_RETENTION` "
        "decides whether old events are discarded or publishing waits.",
        least=1,
    )
    init_age_max_s: int = setting(
        "HEADRACE_INIT_AGE_MAX_S",
        604_800,
        "Seconds that snapshot chunks are retained. A consumer has this long to read a snapshot; a "
        "larger value needs more disk in NATS.",
        least=1,
    )
    dedupe_window_s: float = setting(
        "HEADRACE_DEDUPE_WINDOW_S",
        5.0,
        "JetStream's duplicate window in seconds. Exactly-once delivery doesn't depend on it; a "
        "larger value costs nats-server memory.",
        least=0.1,
    )
    retention: Retention = setting(
        "HEADRACE_RETENTION",
        Retention.RELAXED,
        "Behavior of a full change stream. `relaxed` discards the oldest events. "
        "`strict` refuses new ones: publishing waits, and PostgreSQL's slot retains WAL until "
        "there is space again.",
    )
