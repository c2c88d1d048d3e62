"""Reads messages of other tables that follow a mirror's last event in the stream.

A transaction's last event may belong to a table that the mirror doesn't follow, and then none of
the mirror's events says that the transaction is over. Promises: messages are read in stream order,
up to the first one that the mirror has yet to receive, or that nats-server lists as missing. So
their statements hold, no matter which server answers, or how far behind it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace.consumer import Event
from headrace.consumer.messages import events_of
from headrace.contract.events import GAP
from headrace.contract.subjects_and_ids import CDC_SUBJECTS, table_token
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.jetstream.holes import HolesError, keeps_all, known_holes, within
from headrace.jetstream.range_reader import Stretch, StretchError

# This many are requested one by one: a transaction mostly has only a few more events.
SINGLE_MESSAGES = 32
STRETCH_MESSAGES = 20_000


class Ahead:
    def __init__(
        self, client: Client, stream: str, dictionaries: DictionaryReader, followed: frozenset[str]
    ) -> None:
        self._client = client
        self._js = client.jetstream()
        self._stream = stream
        self._dictionaries = dictionaries
        # By token: the mirror's consumer delivers the events of these tables, so reading ahead must
        # stop there.
        self._followed = followed
        # Every message up to here was read, if the mirror didn't receive it, or no filter matches
        # it.
        self.at = 0

    async def read(self, after: int) -> AsyncIterator[list[Event]]:
        """Some at a time; ends before a message for the mirror, at the stream's end, and if the
        server is unavailable.
        """
        self.at = max(self.at, after)
        try:
            for _ in range(SINGLE_MESSAGES):
                events = await self._next()
                if not events:
                    return
                yield events
            async for events in self._stretch():
                yield events
        except (NatsError, OSError, StretchError, HolesError):
            # Not found, or nobody answers: the caller tries again.
            return

    async def _next(self) -> list[Event]:
        # One request for each message: it is answered immediately, also at the stream's end, while
        # a consumer would wait. A transaction rarely has more than a few foreign events left.
        message = await self._js.get_msg(self._stream, self.at + 1, subject=CDC_SUBJECTS, next=True)
        seq = int(message.seq or 0)
        # A skipped sequence may have been an event for the mirror. If it is gone, nothing
        # behind it may end a transaction.
        if await self._are_gone(seq):
            return []
        header = "".join(f"{name}: {value}\r\n" for name, value in (message.headers or {}).items())
        return await self._foreign(seq, header.encode(), message.data or b"")

    async def _are_gone(self, seq: int) -> bool:
        """Whether messages before this one were discarded by the stream's limits, or are missing
        from its middle: a transaction may have lost events there, and the mirror's consumer will
        report it too.
        """
        if seq == self.at + 1:
            return False
        info = await self._js.stream_info(self._stream)
        if int(info.state.first_seq) > self.at + 1:
            return True
        if not info.state.num_deleted or not keeps_all(info.config):
            return False
        return bool(within(await known_holes(self._js, self._stream), self.at + 1, seq - 1))

    async def _stretch(self) -> AsyncIterator[list[Event]]:
        """Many of them, read in bulk."""
        end = int((await self._js.stream_info(self._stream)).state.last_seq)
        stretch = Stretch(self._client, self._stream, self.at + 1)
        try:
            async for found in stretch.read(min(end, self.at + STRETCH_MESSAGES)):
                for seq, header, payload in found:
                    if await self._are_gone(seq):
                        return
                    events = await self._foreign(seq, header, payload)
                    if not events:
                        return
                    yield events
        finally:
            await stretch.close()

    async def _foreign(self, seq: int, header: bytes, payload: bytes) -> list[Event]:
        """The events of a message; none if it is for the mirror."""
        events = await events_of(self._dictionaries, payload, "", seq, header)
        if any(self._is_ours(event) for event in events):
            return []
        self.at = seq
        return events

    def _is_ours(self, event: Event) -> bool:
        # A gap concerns every table; the follower must process it itself, in order.
        return event.operation == GAP or bool(
            event.table and table_token(event.schema, event.table) in self._followed
        )
