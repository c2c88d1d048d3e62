"""What the stream has behind the events that a mirror was given, of tables that it does not follow.

A transaction's last event may be of such a table, and then nothing that the mirror is given says
that it is over. Promises: messages are read one behind the other, by their sequence in the stream,
up to the first that the mirror is still to be given; so what they say holds, whatever server
answers, however far behind it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace.consumer import Event
from headrace.consumer.messages import events_of
from headrace.contract.events import GAP
from headrace.contract.naming import CDC_SUBJECTS, table_token
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.jetstream.range_reader import Stretch, StretchError

# So many are asked for one by one: a transaction has mostly a few events more.
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
        self._followed = followed
        # Everything that the mirror was not given was read up to here, or no filter wants it.
        self.at = 0

    async def read(self, after: int) -> AsyncIterator[list[Event]]:
        """Some at a time; ends before a message for the mirror, at the stream's end, and where the
        server is away.
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
        except (NatsError, OSError, StretchError):
            # Not found, or nobody answers: who waits asks again.
            return

    async def _next(self) -> list[Event]:
        message = await self._js.get_msg(self._stream, self.at + 1, subject=CDC_SUBJECTS, next=True)
        seq = int(message.seq or 0)
        if seq > self.at + 1 and await self._discarded():
            return []
        header = "".join(f"{name}: {value}\r\n" for name, value in (message.headers or {}).items())
        return await self._foreign(seq, header.encode(), message.data or b"")

    async def _discarded(self) -> bool:
        """Whether what comes next was lost to the stream's limits: the consumer of the mirror finds
        that out too.
        """
        state = (await self._js.stream_info(self._stream)).state
        return int(state.first_seq) > self.at + 1

    async def _stretch(self) -> AsyncIterator[list[Event]]:
        """Many of them, read in bulk."""
        end = int((await self._js.stream_info(self._stream)).state.last_seq)
        stretch = Stretch(self._client, self._stream, self.at + 1)
        try:
            async for found in stretch.read(min(end, self.at + STRETCH_MESSAGES)):
                for seq, header, payload in found:
                    if seq > self.at + 1 and await self._discarded():
                        return
                    events = await self._foreign(seq, header, payload)
                    if not events:
                        return
                    yield events
        finally:
            await stretch.close()

    async def _foreign(self, seq: int, header: bytes, payload: bytes) -> list[Event]:
        """The events of a message; none where it is for the mirror."""
        events = await events_of(self._dictionaries, payload, "", seq, header)
        if any(self._is_ours(event) for event in events):
            return []
        self.at = seq
        return events

    def _is_ours(self, event: Event) -> bool:
        return event.operation == GAP or bool(
            event.table and table_token(event.schema, event.table) in self._followed
        )
