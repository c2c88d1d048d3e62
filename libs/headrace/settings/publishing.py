"""Settings of message format, delivery, the internal bus and publishing."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.contract.values import ArrayForm, Encoding, JsonForm
from headrace.settings.choices import (
    Compat,
    DeliveryMode,
    Durability,
    IngestMode,
    MsgIdHeader,
    Poison,
)
from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """Which changes are delivered, and the format of messages."""

    encoding: Encoding = setting(
        "HEADRACE_ENCODING",
        Encoding.MSGPACK,
        "Encoding of events and snapshots. `msgpack` is smaller and faster; `json` is readable "
        "everywhere.",
    )
    arrays: ArrayForm = setting(
        "HEADRACE_ARRAYS",
        ArrayForm.LITERAL,
        "Form of PostgreSQL arrays. `literal` keeps PostgreSQL's text, such as `{1,2}`; `list` "
        "converts it to a nested list.",
    )
    json_values: JsonForm = setting(
        "HEADRACE_JSON_VALUES",
        JsonForm.NATIVE,
        "Form of `json` and `jsonb` values. `native` embeds the document in the message; `text` "
        "keeps PostgreSQL's text, exactly and at less cost.",
    )
    int8_as_string: bool = setting(
        "HEADRACE_INT8_AS_STRING",
        False,
        "Write `bigint` values as strings, because JavaScript rounds integers above 2⁵³. Only with "
        "JSON encoding.",
    )
    message_prefixes: tuple[str, ...] = setting(
        "HEADRACE_MESSAGE_PREFIXES",
        (),
        "Prefixes of `pg_logical_emit_message` to deliver as message events. Messages with other "
        "prefixes are ignored.",
    )
    include: tuple[str, ...] = setting(
        "HEADRACE_INCLUDE",
        (),
        "Tables to deliver, as `table`, `schema.table` or `schema.*`. Unset delivers every table "
        "of the publication.",
    )
    exclude: tuple[str, ...] = setting(
        "HEADRACE_EXCLUDE",
        (),
        "Tables not to deliver, in the same forms. Takes precedence over `HEADRACE_INCLUDE`.",
    )
    exclude_columns: tuple[str, ...] = setting(
        "HEADRACE_EXCLUDE_COLUMNS",
        (),
        "Columns to leave out of events and snapshots, as `table.column` or "
        "`schema.table.column`. PostgreSQL still sends them to wal-reader; a column list in the "
        "publication prevents that too. They are found by name: a column that is renamed is "
        "delivered from then on, so set its new name before the migration. `headrace doctor` "
        "warns of names that match no column.",
    )
    zstd: bool = setting(
        "HEADRACE_ZSTD",
        False,
        "Compress snapshot chunks with zstd. Saves disk and network in NATS at the cost of CPU.",
    )
    zstd_events: bool = setting(
        "HEADRACE_ZSTD_EVENTS",
        False,
        "Compress single events with zstd, using a dictionary trained for each table. Consumers "
        "need access to `HEADRACE_STATE_BUCKET` to decompress them. Not used with "
        "`HEADRACE_DELIVERY=batch`.",
    )


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """The mapping of events to JetStream messages, and when they count as durable."""

    mode: DeliveryMode = setting(
        "HEADRACE_DELIVERY",
        DeliveryMode.EVENT,
        "Contents of a message. `event`: one change, in commit order. `batch`: an array of "
        "changes of one table, for the highest throughput. `transaction`: one change, where the "
        "messages of a transaction are stored together or not at all.",
    )
    compat: Compat = setting(
        "HEADRACE_COMPAT",
        Compat.NONE,
        "`bridge` publishes exactly the PG→NATS bridge's messages, for consumers that haven't been "
        "migrated. Requires `HEADRACE_DELIVERY=event`.",
    )
    ingest: IngestMode = setting(
        "HEADRACE_INGEST",
        IngestMode.AUTO,
        "Acknowledgement by JetStream. `fast` acknowledges many messages together and needs "
        "nats-server 2.14; `chain` acknowledges each one. `auto` uses `fast` where server and "
        "stream support it. Both deliver exactly once and in order.",
    )
    msg_id_header: MsgIdHeader = setting(
        "HEADRACE_MSG_ID_HEADER",
        MsgIdHeader.NATS,
        "The header that contains a message's ID. nats-server remembers the IDs in `Nats-Msg-Id` "
        "for `HEADRACE_DEDUPE_WINDOW_S`, which takes about a fifth of its time per message. "
        "Exactly-once delivery doesn't depend on that, so the stream is faster with "
        "`Headrace-Msg-Id`. Consumers that read the ID must then read that header. A chain "
        "(`HEADRACE_INGEST`) always uses `Nats-Msg-Id`.",
    )
    poison: Poison = setting(
        "HEADRACE_POISON",
        Poison.STOP,
        "Treatment of a change that can't be decoded. `stop` stops publishing at that change. "
        "`park` stores it in `HEADRACE_PARKED_BUCKET`, logs an error and continues: its ordinal is "
        "missing from the stream.",
    )
    batch_events_max: int = setting(
        "HEADRACE_BATCH_EVENTS_MAX",
        500,
        "Maximum number of events in a message of `HEADRACE_DELIVERY=batch`. Larger batches raise "
        "throughput, and consumers process more events together.",
        least=1,
    )
    batch_bytes_max: int = setting(
        "HEADRACE_BATCH_BYTES_MAX",
        256 * 1024,
        "Maximum size of a batch in bytes. NATS's maximum payload applies where it is smaller.",
        least=1024,
    )
    batch_age_max_s: float = setting(
        "HEADRACE_BATCH_AGE_MAX_S",
        0.1,
        "Seconds that an incomplete batch waits for more events. This is the latency that batches "
        "add when traffic is low; a larger value makes fewer, larger messages.",
        least=0.001,
    )
    atomic_messages_max: int = setting(
        "HEADRACE_ATOMIC_MESSAGES_MAX",
        1000,
        "Maximum number of messages in one atomic group of `HEADRACE_DELIVERY=transaction`. Must "
        "not exceed nats-server's `jetstream.limits.batch.max_msgs`. A larger transaction is split "
        "into several groups, as the headers of its messages show.",
        least=1,
    )
    atomic_bytes_max: int = setting(
        "HEADRACE_ATOMIC_BYTES_MAX",
        16 * MIB,
        "Maximum size in bytes of an atomic group. The publisher keeps a group in memory until "
        "JetStream acknowledges it.",
        least=65_536,
    )
    durability: Durability = setting(
        "HEADRACE_DURABILITY",
        Durability.ACK,
        "When PostgreSQL may discard WAL. `ack`: when JetStream has acknowledged the change. "
        "`sync`: `HEADRACE_JETSTREAM_SYNC_S` later, when nats-server has also synced it to disk; "
        "the slot then always retains the WAL of that interval.",
    )
    sync_interval_s: float = setting(
        "HEADRACE_JETSTREAM_SYNC_S",
        120.0,
        "The `sync_interval` of nats-server in seconds, for `HEADRACE_DURABILITY=sync`. Must "
        "not be "
        "smaller than the server's value, which clients can't read; a larger value only "
        "retains "
        "more WAL.",
        least=0.1,
    )

    @property
    def hold_s(self) -> float:
        """Seconds to wait between an acknowledgement and its confirmation to PostgreSQL."""
        # JetStream's acknowledgement is not an fsync (docs/adr/0005): the server may sync this much
        # later.
        if self.durability is Durability.SYNC:
            return self.sync_interval_s
        return 0.0


@dataclass(frozen=True, slots=True)
class BusSettings:
    """The internal bus that carries frames of WAL from wal-reader to its confirmers."""

    frame_bytes_max: int = setting(
        "HEADRACE_FRAME_BYTES_MAX",
        256 * 1024,
        "Size in bytes at which wal-reader sends a frame. It sends a smaller one when no more WAL "
        "is waiting. Larger frames cost less CPU per change and more memory; half of NATS's "
        "maximum payload is the upper limit.",
        least=1024,
    )
    in_flight_bytes_max: int = setting(
        "HEADRACE_IN_FLIGHT_BYTES_MAX",
        2 * MIB,
        "Maximum bytes between wal-reader and its slowest confirmer (flow-control credit). "
        "wal-reader stops reading when they are used up. A larger value evens out bursts and "
        "costs memory in every confirmer.",
        least=65_536,
    )
    status_interval_s: float = setting(
        "HEADRACE_STATUS_INTERVAL_S",
        1.0,
        "Seconds between standby status updates to PostgreSQL, which confirm the LSN up to which "
        "changes are durable. A smaller value lets PostgreSQL discard WAL sooner. Must be well "
        "below PostgreSQL's `wal_sender_timeout`.",
        least=0.05,
    )


@dataclass(frozen=True, slots=True)
class PublishingSettings:
    """Limits on messages that JetStream has not acknowledged yet."""

    window_messages_max: int = setting(
        "HEADRACE_WINDOW_MESSAGES_MAX",
        4096,
        "Maximum number of messages that are published and not yet acknowledged. A larger window "
        "hides the latency of a distant NATS; a smaller one bounds what is published again after a "
        "lost connection.",
        least=1,
    )
    window_bytes_max: int = setting(
        "HEADRACE_WINDOW_BYTES_MAX",
        8 * MIB,
        "The same limit in bytes; whichever is reached first applies. It bounds the publisher's "
        "memory.",
        least=65_536,
    )
    ack_timeout_s: float = setting(
        "HEADRACE_ACK_TIMEOUT_S",
        10.0,
        "Seconds without any acknowledgement from JetStream after which the publisher stops "
        "waiting, reads the stream's end and publishes again from there. A value below the "
        "server's usual latency causes needless restarts.",
        least=0.1,
    )


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Leases and resume points, which services keep in the state bucket."""

    progress_interval_s: float = setting(
        "HEADRACE_PROGRESS_INTERVAL_S",
        1.0,
        "Seconds between writes of a resume point by the publisher and the archiver. A larger "
        "value writes less; after a crash, more of the stream or archive is read to find the "
        "resume point.",
        least=0.02,
    )
    lease_ttl_s: float = setting(
        "HEADRACE_LEASE_TTL_S",
        6.0,
        "Seconds after which a lease that its holder doesn't renew expires, so that a standby "
        "takes over. A smaller value fails over sooner; a larger one tolerates longer pauses of "
        "the holder or of NATS.",
        least=0.5,
    )
