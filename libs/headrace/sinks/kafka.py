"""Kafka as a sink: whole transactions, exactly once for readers with `read_committed`.

Every commit is one Kafka transaction with the records and the marks, which are in a compacted
topic. Its `transactional.id` comes from the sink's name: opening a sink fences an older process,
and Kafka finishes or aborts what that process left before the marks are read.

It promises that a PostgreSQL transaction is never split over Kafka transactions. It never sends a
record outside a transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.consumer.watermark import Watermark
from headrace.process.failpoint import failpoint
from headrace.sinks.kafka_client import KafkaOptions, KafkaSettings, refuses, translated
from headrace.sinks.kafka_topics import KafkaTopics
from headrace.sinks.marks import marks_from_json, marks_to_json
from headrace.sinks.port import Promise, RefusedError, SinkAwayError, SinkError, SinkOptions
from headrace.sinks.routing import Record, RoutedTransaction
from headrace.sinks.target_options import read_options

# Within the session's limit for a call, so that the error here says more than "no answer".
TIMEOUT_S = 45.0
CONNECT_TIMEOUT_S = 10.0
ABORT_TIMEOUT_S = 5.0
# A transaction that comes in parts is sent to the brokers after this many records, which limits
# what is kept in order to name a refused one.
UNSENT_RECORDS_MAX = 10_000
_FULL_PAUSE_S = 0.05
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_POSITION_KEY = b"position"
# Errors of records that were dropped because another one failed.
_CONSEQUENCES = frozenset(
    {
        KafkaError._PURGE_QUEUE,  # noqa: SLF001  # the client's public name for its own error
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001  # the same
        KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001  # the same
    }
)

T = TypeVar("T")


class KafkaSink:
    """One session of a sink in Kafka. The client's calls block, so a thread makes them."""

    promise: ClassVar[Promise] = Promise.EXACTLY_ONCE

    def __init__(self, options: SinkOptions) -> None:
        self._options = read_options(KafkaOptions, options)
        self._settings = KafkaSettings.of(options, self._options)
        self._stream = options.stream
        self._topics = KafkaTopics(self._settings, self._options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{options.name}")
        self._producer: Producer | None = None
        self._in_transaction = False
        # Records whose delivery is not known yet, and deliveries that failed.
        self._unsent: list[Record] = []
        self._failed: list[tuple[KafkaError, Message]] = []

    async def open(self) -> Mapping[str, Watermark]:
        """Fence an older process, then read the marks: in this order, because an older commit ends
        before the fence does.
        """
        return await self._call("open", self._open)

    async def check(self) -> str:
        """Log in at a broker. Without `init_transactions` nobody is fenced."""
        await self._call("connect", self._check)
        return "a broker accepts the login"

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        """Send the records inside the open Kafka transaction."""
        await self._call("write", functools.partial(self._write, transactions))

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        """Add the marks, and commit the Kafka transaction."""
        await self._call("commit", functools.partial(self._commit, marks))

    async def close(self) -> None:
        """Abort what is open: until then, readers with `read_committed` wait for it."""
        if self._producer is not None:
            # A call that never returned still occupies the thread.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABORT_TIMEOUT_S):
                    await asyncio.wrap_future(self._thread.submit(self._close))
        self._thread.shutdown(wait=False)

    async def _call(self, doing: str, work: Callable[[], T]) -> T:
        try:
            return await asyncio.wrap_future(self._thread.submit(work))
        except KafkaException as error:
            raise translated(error, self._settings, doing) from error
        except SystemError as error:
            # A fatal error that the client raises while it still calls `_delivered` for the
            # records of the same poll: that call fails, and has the error as its cause.
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise translated(error.__cause__, self._settings, doing) from error

    def _check(self) -> None:
        # With the transactional ID, but without a transaction: the running process keeps its epoch.
        self._producer = Producer(self._settings.producer())
        self._connect(self._producer)

    def _open(self) -> dict[str, Watermark]:
        producer = Producer({**self._settings.producer(), "on_delivery": self._delivered})
        self._producer = producer
        self._connect(producer)
        self._topics.open()
        # The fence: Kafka completes or aborts what an older process left, then refuses it.
        producer.init_transactions(TIMEOUT_S)
        stored = self._topics.last_position(TIMEOUT_S)
        if stored is None:
            return {}
        return marks_from_json(stored, self._stream)

    def _connect(self, producer: Producer) -> None:
        """Wait for a broker. A refused password or certificate is reported only to a callback,
        which `poll` runs: the call itself just fails to connect.
        """
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                producer.list_topics(timeout=1.0)
            except KafkaException:
                producer.poll(0)
                if self._settings.login_refused or time.monotonic() > deadline:
                    raise
            else:
                return

    def _write(self, transactions: Sequence[RoutedTransaction]) -> None:
        self._begin()
        for transaction in transactions:
            for record in transaction.records:
                self._send(record)
            if len(self._unsent) > UNSENT_RECORDS_MAX:
                self._flush()
        failpoint("sink.half_written")

    def _commit(self, marks: Mapping[str, Watermark]) -> None:
        producer = self._begin()
        position = marks_to_json(marks, self._stream)
        self._produce(self._settings.position_topic, _POSITION_KEY, position, {})
        self._flush()
        failpoint("sink.half_committed")
        producer.commit_transaction(TIMEOUT_S)
        self._in_transaction = False

    def _close(self) -> None:
        producer = self._begun
        if self._in_transaction:
            # Fenced, or the broker is away: the next session's fence aborts it.
            with contextlib.suppress(KafkaException):
                # Records in the queue would otherwise be sent before the abort.
                producer.purge()
                producer.abort_transaction(ABORT_TIMEOUT_S)
        # Not its `close`, which waits for a broker that is away.
        self._producer = None
        self._topics.close()

    @property
    def _begun(self) -> Producer:
        assert self._producer is not None, "the sink is open"
        return self._producer

    def _begin(self) -> Producer:
        producer = self._begun
        if not self._in_transaction:
            producer.begin_transaction()
            self._in_transaction = True
        return producer

    def _send(self, record: Record) -> None:
        topic = record.destination
        if not self._topics.knows(topic):
            if not _TOPIC.fullmatch(topic):
                raise RefusedError(record, "a topic's name has only letters, digits and . _ -")
            self._topics.need(topic)
        try:
            self._produce(topic, record.key, record.value, record.headers)
            # After the event: log compaction keeps the last record of a key, which removes the row.
            if self._options.tombstones and record.event.operation == "DELETE" and record.key:
                self._produce(topic, record.key, None, record.headers)
        except KafkaException as error:
            if refuses(error.args[0]):
                raise RefusedError(record, error.args[0].str()) from error
            raise
        self._unsent.append(record)

    def _produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: dict[str, Any]
    ) -> None:
        producer = self._begun
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                producer.produce(topic, value, key, headers=headers)
            except BufferError as error:
                # The queue has a limit: it empties as brokers answer.
                if time.monotonic() > deadline:
                    raise SinkAwayError(f"{self._settings.brokers} takes no records") from error
                producer.poll(_FULL_PAUSE_S)
            else:
                return

    def _flush(self) -> None:
        """Wait until the brokers have every record."""
        try:
            left = self._begun.flush(TIMEOUT_S)
        except SystemError:
            # The client has met a fatal error, such as a newer producer of this name, and lost its
            # exception. The next call raises it, at the latest the commit, which confirms nothing
            # that failed.
            return
        if self._failed:
            raise self._failure()
        if left:
            raise SinkAwayError(f"{self._settings.brokers} did not take {left} records in time")
        self._unsent = []

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        # Called by the client within `poll` and `flush`: raising is left to `_flush`.
        if error is not None:
            self._failed.append((error, message))

    def _failure(self) -> SinkError:
        """The error for deliveries that failed: of the record that the broker refuses, if one is
        the cause.
        """
        causes = [one for one in self._failed if one[0].code() not in _CONSEQUENCES]
        error, message = (causes or self._failed)[0]
        if not refuses(error):
            return translated(KafkaException(error), self._settings, "write")
        # A broker refuses a batch as a whole: the largest record is the one that is too large.
        values = [one.value() or b"" for _, one in causes if one.topic() == message.topic()]
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            largest = max(values, key=len)
            limit = self._topics.message_bytes_max(str(message.topic()))
            if len(largest) < limit:
                return SinkError(
                    f"Topic {message.topic()} accepts batches of {limit} bytes, less than a batch",
                    remedy=f'Set `client = {{ "batch.size" = {limit // 2} }}` in its options.',
                )
        else:
            largest = message.value() or b""
        for record in self._unsent:
            if record.value == largest and record.destination == message.topic():
                return RefusedError(record, error.str())
        return translated(KafkaException(error), self._settings, "write")
