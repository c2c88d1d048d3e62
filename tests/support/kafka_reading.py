"""The content of a Kafka topic, by Kafka's own client."""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

COMMITTED = "read_committed"
UNCOMMITTED = "read_uncommitted"


def records(bootstrap: str, topic: str, isolation: str = COMMITTED) -> list[Message]:
    """Every record of a topic, by partition, as a reader of this isolation level has it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    deadline = time.monotonic() + 60
    found: list[Message] = []
    try:
        partitions = list(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])
        left = set(partitions)
        while left:
            assert time.monotonic() < deadline, f"{topic} has no end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise AssertionError(error.str())
    finally:
        consumer.close()
    return sorted(found, key=lambda one: (one.partition() or 0, one.offset() or 0))


def header(message: Message, name: str) -> str:
    """One header of a record, as text."""
    value = dict(message.headers() or [])[name]
    assert isinstance(value, bytes)
    return value.decode()
