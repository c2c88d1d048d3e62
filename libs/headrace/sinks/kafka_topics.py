"""A Kafka sink's topics: created or required, and the compacted one with its marks.

Promises that a topic is never created by accident, and that marks are never kept in a topic which
Kafka would shorten. Every call blocks.
"""

from __future__ import annotations

import time

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from headrace.sinks.kafka_client import KafkaOptions, KafkaSettings
from headrace.sinks.port import SinkAwayError, SinkError

REQUEST_TIMEOUT_S = 20.0
# The last commit is usually among these many offsets from the end: each has two, the record and
# the transaction's marker. Aborted ones make it more.
_TAIL_OFFSETS = 64
_TAIL_GROWTH = 16
# Rolled often, so that compaction keeps the topic small.
_POSITION_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


class KafkaTopics:
    """The topics that one session has seen."""

    def __init__(self, settings: KafkaSettings, options: KafkaOptions) -> None:
        self._settings = settings
        self._options = options
        self._known: set[str] = set()
        self._admin_client: AdminClient | None = None

    def open(self) -> None:
        """Create the position's topic if necessary, and check that it is compacted."""
        topic = self._settings.position_topic
        if not self._exists(topic):
            self._create(NewTopic(topic, 1, self._options.replication, config=_POSITION_CONFIG))
        config = self._config(topic)
        if config["cleanup.policy"] != "compact":
            raise SinkError(
                f"Kafka deletes old records of {topic}, and with them the sink's position",
                remedy=f"Set its cleanup.policy to compact, not {config['cleanup.policy']}.",
            )

    def close(self) -> None:
        """Release the connection."""
        self._admin_client = None

    def knows(self, topic: str) -> bool:
        """Whether this session has seen the topic."""
        return topic in self._known

    def need(self, topic: str) -> None:
        """See that the topic exists."""
        if not self._exists(topic):
            new = NewTopic(topic, self._options.partitions, self._options.replication)
            self._create(new)
        self._known.add(topic)

    def message_bytes_max(self, topic: str) -> int:
        """The largest batch that the topic accepts."""
        return int(self._config(topic)["max.message.bytes"])

    def last_position(self, timeout_s: float) -> bytes | None:
        """Return the value of the last committed record in the position's topic."""
        partition = TopicPartition(self._settings.position_topic, 0)
        reader = Consumer(self._settings.reader())
        deadline = time.monotonic() + timeout_s
        try:
            low, high = reader.get_watermark_offsets(partition, REQUEST_TIMEOUT_S)
            span = _TAIL_OFFSETS
            while True:
                start = max(low, high - span)
                found = self._last_from(reader, start, deadline)
                if found is not None or start <= low:
                    return found
                span *= _TAIL_GROWTH
        finally:
            reader.close()

    def _last_from(self, reader: Consumer, start: int, deadline: float) -> bytes | None:
        topic = self._settings.position_topic
        # Also if offset 0 is gone, the beginning is where compaction left it.
        reader.assign([TopicPartition(topic, 0, start or OFFSET_BEGINNING)])
        last: bytes | None = None
        # An end-of-partition event arrives at the last stable offset.
        while time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                last = message.value()
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                return last
            else:
                raise KafkaException(error)
        raise SinkAwayError(f"Kafka did not return the position of sink {self._settings.name}")

    @property
    def _admin(self) -> AdminClient:
        if self._admin_client is None:
            self._admin_client = AdminClient(self._settings.base())
        return self._admin_client

    def _exists(self, topic: str) -> bool:
        # All topics, because a request for one that is missing may create it.
        found = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        return topic in found

    def _create(self, topic: NewTopic) -> None:
        if not self._options.create_topics:
            config = "".join(
                f" --config {name}={value}" for name, value in (topic.config or {}).items()
            )
            raise SinkError(
                f"Kafka has no topic {topic.topic}, which sink {self._settings.name} writes to",
                remedy=(
                    f"Create it: kafka-topics.sh --create --topic {topic.topic}{config}; or set "
                    "`create_topics = true`."
                ),
            )
        created = self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)
        try:
            created[topic.topic].result()
        except KafkaException as error:
            # Another process was faster.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _config(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        asked = self._admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        return {name: str(entry.value) for name, entry in asked[resource].result().items()}
