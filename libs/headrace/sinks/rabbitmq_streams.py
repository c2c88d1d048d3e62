"""RabbitMQ streams as a sink: every record once, in order.

Records of a stream are numbered, and the server drops a number that it has already from a publisher
of the same name: two processes at the same time send the same records, which are stored once. The
marks are in a small stream next to the data, with the numbers that belong to them. After a crash,
what is stored beyond them is read back, and left out by its ID.

A reader may see a transaction in parts: RabbitMQ stores no group of messages atomically. The
property `headrace-last` names the last record of a transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rstream import exceptions

from headrace.consumer.watermark import Watermark
from headrace.process.failpoint import failpoint
from headrace.sinks.marks import marks_from_json, marks_to_json
from headrace.sinks.port import SEEN, Promise, RefusedError, SinkAwayError, SinkError, SinkOptions
from headrace.sinks.rabbitmq_options import Address, RabbitOptions
from headrace.sinks.rabbitmq_publishers import RECORD_BYTES_MAX, Coverage, Publishers
from headrace.sinks.routing import Record, RoutedTransaction
from headrace.sinks.target_options import read_options

PORT = 5552
# Of a transaction that comes in parts: more than this is sent before its end.
PART_RECORDS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class RabbitStreamOptions(RabbitOptions):
    """The options of a sink in RabbitMQ streams."""

    # Of created streams, in bytes; 0 for no limit.
    stream_bytes_max: int = 0
    # The servers are behind a load balancer: connect until the right one answers.
    load_balancer: bool = False


class RabbitStreamSink:
    """One session of a sink in RabbitMQ streams."""

    promise: ClassVar[Promise] = Promise.EXACTLY_ONCE

    def __init__(self, options: SinkOptions) -> None:
        chosen = read_options(RabbitStreamOptions, options)
        self._name = options.name
        self._stream = options.stream
        self._where = Address.of(options, chosen, PORT)
        reference = f"headrace-{options.name}"
        self._position_stream = f"{reference}-position"
        self._publishers = Publishers(
            self._where,
            reference,
            username=chosen.username,
            password=chosen.password,
            create=chosen.create,
            bytes_max=chosen.stream_bytes_max,
            load_balancer=chosen.load_balancer,
        )
        self._waiting: list[Record] = []
        self._seen_seq = 0

    async def open(self) -> Mapping[str, Watermark]:
        """Connect, and read the marks."""
        with self._translated("open"):
            await self._publishers.connect()
            stored = await self._publishers.last_of(self._position_stream)
        if stored is None:
            return {}
        marks = marks_from_json(stored, self._stream)
        self._publishers.stored = Coverage.of(stored)
        self._seen_seq = marks.get(SEEN, Watermark()).stream_seq
        return marks

    async def check(self) -> str:
        """Log in."""
        with self._translated("connect"):
            await self._publishers.connect()
        return "the server accepts the login"

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        """Keep the records until the commit."""
        for transaction in transactions:
            for record in transaction.records:
                if len(record.value) > RECORD_BYTES_MAX:
                    size = len(record.value)
                    raise RefusedError(record, f"{size} bytes do not fit into a frame")
                self._waiting.append(record)
            if not transaction.ends and len(self._waiting) > PART_RECORDS_MAX:
                await self._publish()

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        """Send the records, wait until the servers have them, then store the marks."""
        await self._publish()
        with self._translated("commit"):
            if marks.get(SEEN, Watermark()).stream_seq < self._seen_seq:
                # A reset.
                await self._publishers.cover_everything()
            self._seen_seq = marks.get(SEEN, Watermark()).stream_seq
            position = marks_to_json(marks, self._stream, **self._publishers.covered())
            await self._publishers.append(self._position_stream, position)

    async def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(OSError, exceptions.ServerError):
            await self._publishers.close()

    async def _publish(self) -> None:
        waiting, self._waiting = self._waiting, []
        half = len(waiting) // 2
        with self._translated("commit"):
            # In two parts, so that a test can end the process between them.
            for part in (waiting[:half], waiting[half:]):
                for stream, records in _by_stream(part).items():
                    await self._publishers.publish(stream, records)
                await self._publishers.confirmed()
                failpoint("sink.half_committed")

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (
            exceptions.AuthenticationFailure,
            exceptions.SASLAuthenticationFailureLoopback,
            exceptions.VirtualHostAccessFailure,
            exceptions.AccessRefused,
        ) as error:
            raise SinkError(
                f"{self._where} does not allow {self._name} to {doing}: {type(error).__name__}",
                remedy="Check username, password, the virtual host and the user's permissions.",
            ) from error
        except (OSError, exceptions.ServerError, exceptions.ClientError) as error:
            reason = str(error) or type(error).__name__
            raise SinkAwayError(f"{self._where} failed to {doing}: {reason}") from error


def _by_stream(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.destination, []).append(record)
    return found
