"""Settings and errors of the Kafka client.

Promises that the settings on which exactly-once delivery depends can't be overridden, and that an
error says what to change, without a secret in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import SettingError
from headrace.log import logger
from headrace.sinks.port import SinkAwayError, SinkError, SinkFencedError, SinkOptions
from headrace.sinks.target_options import check

SCHEME = "kafka://"
_QUEUE_KIB_MAX = 64 * 1024
# What exactly-once delivery consists of.
_FIXED = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.idempotence",
        "isolation.level",
        "on_delivery",
        "request.required.acks",
        "transactional.id",
    }
)
_FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001  # the client's public name for its own error
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_LOGIN = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001  # the client's public name for its own error
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._SSL,  # noqa: SLF001  # the same
    }
)
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
    }
)
_UNKNOWN = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  # the client's public name for its own error
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of a sink in Kafka, `[sink.options]` in headrace.toml."""

    # After each DELETE, also send a record without a value: a compacted topic then forgets the key.
    tombstones: bool = False
    # Create missing topics. Otherwise a missing topic is an error.
    create_topics: bool = True
    # Of created topics; -1 for the broker's default.
    partitions: int = -1
    replication: int = -1
    # Unique in the Kafka cluster; from the sink's name if empty. Also names the position's topic.
    transactional_id: str = ""
    # After this long the broker aborts a transaction. At most the broker's maximum, 15 minutes by
    # default.
    transaction_timeout_s: float = 300.0
    # The largest record; no more than `max.message.bytes` of the topics.
    message_bytes_max: int = 1_000_000
    # none, gzip, snappy, lz4 or zstd.
    compression: str = "zstd"
    # With SASL: user and password, and PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
    username: str = ""
    password: str = field(default="", repr=False)
    mechanism: str = "SCRAM-SHA-512"
    # TLS; implied by any of the files.
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    # More settings of librdkafka, by name.
    client: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class KafkaSettings:
    """How one sink connects."""

    brokers: str
    name: str
    transactional_id: str
    common: dict[str, Any]
    of_producer: dict[str, Any]
    # Reported in the background: calls only fail to connect.
    refusal: KafkaError | None = None

    @classmethod
    def of(cls, given: SinkOptions, options: KafkaOptions) -> Self:
        """Check and translate the options."""
        brokers = given.to.removeprefix(SCHEME).rstrip("/")
        check(bool(brokers), given.name, "to", f"Name brokers: {SCHEME}host:9092,host:9092.")
        if fixed := _FIXED & options.client.keys():
            raise SettingError(
                f"Sink {given.name} can't set {min(fixed)}",
                remedy="Exactly-once delivery depends on it: remove it from `client`.",
            )
        producer = {
            "compression.type": options.compression,
            "message.max.bytes": options.message_bytes_max,
            "transaction.timeout.ms": int(options.transaction_timeout_s * 1000),
            "queue.buffering.max.kbytes": _QUEUE_KIB_MAX,
            # The partition that Java's clients choose for a key.
            "partitioner": "murmur2_random",
            **options.client,
        }
        made = cls(
            brokers,
            given.name,
            options.transactional_id or f"headrace-{given.name}",
            _security(options),
            producer,
        )
        made.common |= {"bootstrap.servers": brokers, "client.id": made.transactional_id}
        return made

    @property
    def position_topic(self) -> str:
        """The compacted topic with this sink's marks. No other sink writes to it: an open
        transaction of another one would hide what was committed after it began.
        """
        return f"{self.transactional_id}-position"

    def base(self) -> dict[str, Any]:
        """Settings of every client."""
        # Without a logger, librdkafka prints to stderr.
        return {**self.common, "error_cb": self._reported, "logger": _Quiet()}

    def producer(self) -> dict[str, Any]:
        """Settings of the producer."""
        return {
            **self.base(),
            **self.of_producer,
            "transactional.id": self.transactional_id,
            "enable.idempotence": True,
            # Otherwise there would be a call for each record.
            "delivery.report.only.error": True,
        }

    def reader(self) -> dict[str, Any]:
        """Settings of the consumer that reads the marks."""
        return {
            **self.base(),
            "group.id": self.transactional_id,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }

    @property
    def login_refused(self) -> bool:
        """Whether a broker has refused a password or a certificate, or we its certificate."""
        return self.refusal is not None

    def _reported(self, error: KafkaError) -> None:
        if error.code() in _LOGIN:
            self.refusal = error


class _Quiet:
    """Receives librdkafka's log lines, and passes them on as debug events."""

    def log(self, _level: int, line: str, *values: object) -> None:
        logger("kafka").debug("kafka_client", text=line % values)


def refuses(error: KafkaError) -> bool:
    """Whether the error concerns a record that would be refused at each attempt."""
    return error.code() in _REFUSED


def translated(error: KafkaException, settings: KafkaSettings, doing: str) -> SinkError:
    """The error of the port for one of the client."""
    cause: KafkaError = settings.refusal or error.args[0]
    code = cause.code()
    where = f"Kafka at {settings.brokers}"
    if code in _FENCED:
        return SinkFencedError(
            f"{where} has fenced sink {settings.name}: another process opened it"
        )
    if code in _LOGIN:
        return SinkError(
            f"{where} did not accept the connection of sink {settings.name}: {cause.str()}",
            remedy="Check username, password, mechanism, ca_file and the certificate's host name.",
        )
    if code in _DENIED:
        return SinkError(
            f"{where} does not allow sink {settings.name} to {doing}: {cause.str()}",
            remedy=(
                f"Allow its user Write, Create and DescribeConfigs on its topics and on "
                f"{settings.position_topic}, Read on the latter, and Read on the group and Write "
                f"on the transactional ID {settings.transactional_id}."
            ),
        )
    if code in _UNKNOWN:
        return SinkAwayError(f"{where} has lost a topic of sink {settings.name}: {cause.str()}")
    return SinkAwayError(f"{where} failed to {doing}: {cause.str()}")


def _security(options: KafkaOptions) -> dict[str, Any]:
    tls = options.tls or bool(options.ca_file or options.certificate_file)
    settings: dict[str, Any] = {}
    if options.username:
        settings["security.protocol"] = "SASL_PLAINTEXT"
        if tls:
            settings["security.protocol"] = "SASL_SSL"
        settings["sasl.mechanism"] = options.mechanism
        settings["sasl.username"] = options.username
        settings["sasl.password"] = options.password
    elif tls:
        settings["security.protocol"] = "SSL"
    files = {
        "ssl.ca.location": options.ca_file,
        "ssl.certificate.location": options.certificate_file,
        "ssl.key.location": options.key_file,
    }
    return settings | {name: value for name, value in files.items() if value}
