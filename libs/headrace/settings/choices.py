"""The values of settings that offer a choice."""

from __future__ import annotations

from enum import StrEnum


class Accelerator(StrEnum):
    """The functions in C, if the installation has them; or everything in Python."""

    AUTO = "auto"
    OFF = "off"


class Retention(StrEnum):
    """Behavior of a full change stream: discard its oldest events, or refuse new ones."""

    RELAXED = "relaxed"
    STRICT = "strict"


class SnapshotValues(StrEnum):
    """The contract's typed values, or the texts that COPY prints."""

    TYPED = "typed"
    TEXT = "text"


class SnapshotSpark(StrEnum):
    """Which snapshots run in Spark, and when it starts."""

    ALWAYS = "always"
    AUTO = "auto"
    LARGE = "large"


class DeliveryMode(StrEnum):
    """The contents of one JetStream message, or of one atomic group."""

    EVENT = "event"
    BATCH = "batch"
    TRANSACTION = "transaction"


class IngestMode(StrEnum):
    """Acknowledgement by JetStream: of many messages together, or of each one."""

    AUTO = "auto"
    FAST = "fast"
    CHAIN = "chain"


class MsgIdHeader(StrEnum):
    """The header that contains a message's ID: NATS's, which the server remembers, or our own."""

    NATS = "Nats-Msg-Id"
    HEADRACE = "Headrace-Msg-Id"


class Poison(StrEnum):
    """Treatment of a change that can't be decoded."""

    STOP = "stop"
    PARK = "park"


class Durability(StrEnum):
    """When an LSN is confirmed: once JetStream acknowledges it, or once its disk has it."""

    ACK = "ack"
    SYNC = "sync"


class OtlpProtocol(StrEnum):
    """The OTLP transport, in OpenTelemetry's terms."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


class Compat(StrEnum):
    """The message format: Headrace's, or the PG→NATS bridge's."""

    NONE = "none"
    BRIDGE = "bridge"


class LakeEngine(StrEnum):
    """Where the lake's rows become files."""

    SPARK = "spark"
    AUTO = "auto"
    INLINE = "inline"
