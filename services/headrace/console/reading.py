"""Stored events: searched from the end backwards, found by position, read by transaction.

Positions increase along the stream, so a position is found by halving the range of sequences: no
index, and no bookkeeping for each event. Everything has a budget of messages, bytes and time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime

from nats.aio.client import Client
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from headrace.console.problem import unavailable
from headrace.consumer.event import Event
from headrace.consumer.messages import events_of
from headrace.consumer.reference import whole
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.jetstream.range_reader import Stretch
from headrace.lsn import Position
from headrace.settings import Settings

SEARCH_S = 5.0
WINDOW_MIN = 200
WINDOW_MAX = 2_000
# Held of a window at a time: rows may be as large as a message.
WINDOW_BYTES_MAX = 8 << 20
# A batch has events of one table; those of its transaction in other tables are near.
NEAR = 600
# Messages of other sources that a probe skips.
PASSED_MAX = 200


@dataclass(slots=True)
class Searched:
    """What a search has read."""

    messages: int = 0
    events: int = 0
    bytes: int = 0
    began: float = field(default_factory=time.monotonic)
    oldest: str | None = None
    complete: bool = False
    # Events whose values were asked for, but are not in their messages.
    large: int = 0

    def document(self) -> dict[str, object]:
        return {
            "messages": str(self.messages),
            "events": str(self.events),
            "bytes": str(self.bytes),
            "seconds": round(time.monotonic() - self.began, 3),
            "oldest": self.oldest,
            "complete": self.complete,
            "large": str(self.large),
        }


@dataclass(slots=True)
class StoredMessage:
    """A message's events, with its sequence and size."""

    seq: int
    size: int
    events: list[Event]


class EventReader:
    """Reads the change stream; `client` is set once NATS has been reached."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._dictionaries: DictionaryReader | None = None
        # A search holds up to its budget of bytes in memory.
        self.turns = asyncio.Semaphore(4)

    def connect(self, client: Client) -> None:
        self._client = client
        self._dictionaries = DictionaryReader(client.jetstream(), self._settings.streams.state)

    # A property, so that no caller forgets that the connection may be away.
    @property
    def client(self) -> Client:
        """The connection; a problem if there is none now."""
        if self._client is None or not self._client.is_connected:
            raise unavailable("NATS is not connected, so events can't be read.")
        return self._client

    async def bounds(self) -> tuple[int, int]:
        """The first and the last sequence of the stream; the first is beyond the last if it is
        empty.
        """
        # Asked for each time: the stream discards while a search runs.
        state = (await self.client.jetstream().stream_info(self._settings.streams.cdc)).state
        return int(state.first_seq), int(state.last_seq)

    async def decoded(
        self, data: bytes, subject: str, seq: int, header: bytes = b""
    ) -> list[Event]:
        """The events of a message; of this source only."""
        assert self._dictionaries is not None, "connected before"
        events = await events_of(self._dictionaries, data, subject, seq, header)
        return [event for event in events if event.source == self._settings.source.slot]

    async def window(self, first: int, last: int) -> AsyncIterator[StoredMessage]:
        """The messages of this range in order."""
        stretch = self.stretch(first)
        try:
            async for message in self.messages_of(stretch, last):
                yield message
        finally:
            await stretch.close()

    def stretch(self, first: int) -> Stretch:
        """A reader of the stream from this sequence on, which the caller closes."""
        return Stretch(self.client, self._settings.streams.cdc, first)

    async def messages_of(self, stretch: Stretch, last: int) -> AsyncIterator[StoredMessage]:
        """The messages up to this sequence, with their events."""
        async for found in stretch.read(last):
            for seq, header, payload in found:
                events = await self.decoded(payload, "", seq, header)
                yield StoredMessage(seq, len(payload), events)
            # Decoding is work for the processor: other requests get their turn.
            await asyncio.sleep(0)

    async def backwards(
        self, last: int, first: int, searched: Searched
    ) -> AsyncIterator[StoredMessage]:
        """The messages from `last` down to `first`, until the budget is used up."""
        console = self._settings.console
        size = WINDOW_MIN
        while last >= first:
            lowest = max(first, last - size + 1)
            kept, all_of_it = await self._end_of(lowest, last)
            for message in reversed(kept):
                searched.messages += 1
                searched.events += len(message.events)
                searched.bytes += message.size
                yield message
            if all_of_it:
                last = lowest - 1
                # Most searches end in the first window, which should be read quickly.
                size = min(size * 2, WINDOW_MAX)
            else:
                # The rest is read again, in windows that are held whole.
                last = kept[0].seq - 1
                size = len(kept)
            if (
                searched.messages >= console.search_messages_max
                or searched.bytes >= console.search_bytes_max
                or time.monotonic() - searched.began > SEARCH_S
            ):
                searched.complete = last < first
                return
        searched.complete = True

    async def _end_of(self, first: int, last: int) -> tuple[deque[StoredMessage], bool]:
        """The last messages of this range, as far as they may be held, and whether these are all.
        A consumer reads forwards only, so that the first ones have to be read, too.
        """
        kept: deque[StoredMessage] = deque()
        size = 0
        all_of_it = True
        async for message in self.window(first, last):
            kept.append(message)
            size += message.size
            while size > WINDOW_BYTES_MAX and len(kept) > 1:
                size -= kept.popleft().size
                all_of_it = False
        return kept, all_of_it

    async def message(self, seq: int, subject: str = ">") -> RawStreamMsg | None:
        """The first message from this sequence on."""
        # With a subject, since the stream may have holes where messages were removed.
        try:
            return await self.client.jetstream().get_msg(
                self._settings.streams.cdc, seq, subject=subject, next=True
            )
        except NotFoundError:
            return None

    async def event_from(self, seq: int) -> Event | None:
        """The first event of this source from this sequence on; None without one near."""
        # Bounded: a stream that another source fills would otherwise be read whole.
        for _ in range(PASSED_MAX):
            message = await self.message(seq)
            if message is None:
                return None
            seq = int(message.seq or 0)
            found = await self.decoded(message.data or b"", message.subject or "", seq)
            # A message of another source, or one that contains no event.
            if found:
                return found[0]
            seq += 1
        return None

    async def first_where(self, holds: Callable[[Event], bool]) -> int:
        """The first sequence from which on this holds for events; beyond the end if nowhere."""
        # Around twenty reads for a stream of a million messages.
        low, last = await self.bounds()
        high = last + 1
        while low < high:
            middle = (low + high) // 2
            # Beyond the last event of this source there is nothing to compare, so the end is
            # treated as later.
            event = await self.event_from(middle)
            if event is None or holds(event):
                high = middle
            else:
                # Everything up to this event is before it.
                low = max(middle, event.stream_seq) + 1
        return low

    async def at(self, position: Position) -> Event | None:
        """The change or message at this position, or else a gap event."""
        place = await self.first_where(lambda event: event.position >= position)
        # Batches of several tables overlap, so that positions increase only by and large there.
        first, last = await self.bounds()
        lowest, highest = max(first, place - NEAR), min(last, place + NEAR)
        other = None
        async for message in self.window(lowest, highest):
            for event in message.events:
                # A schema event has the position of the change that it precedes.
                if event.position == position and event.advances:
                    return await self.complete(event)
                if event.position == position:
                    other = event
        return other

    async def complete(self, event: Event) -> Event:
        """The event itself, if its message only refers to it."""
        # Its object may have expired: the reader of the object store names it then.
        if "reference" not in event.payload:
            return event
        payload = await whole(self.client.jetstream(), event.payload)
        return event._replace(payload=dict(payload))

    async def ends(self) -> tuple[Position | None, Position | None]:
        """The positions of the first and the last event, as far as they are near."""
        first, last = await self.bounds()
        earliest = await self.event_from(first)
        latest = None
        async for message in self.window(max(first, last - PASSED_MAX), last):
            for event in message.events:
                latest = event.position
        return (earliest.position if earliest is not None else None), latest

    async def transaction(self, lsn: int, limit: int) -> tuple[list[Event], bool]:
        """The events of the commit at this LSN, and whether these are all."""
        place = await self.first_where(lambda event: event.position.lsn >= lsn)
        first, last = await self.bounds()
        found: list[Event] = []
        size = 0
        # The stream discards from its beginning, which may be in the middle of a transaction.
        all_of_it = place > first or first <= 1
        # It ends where a later commit begins, which with batches is not the next message.
        async for message in self.window(max(first, place - NEAR), last):
            for event in message.events:
                if event.position.lsn == lsn:
                    found.append(event)
                if event.position.lsn > lsn and message.seq > place + NEAR:
                    return found, all_of_it
            if any(event.position.lsn == lsn for event in message.events):
                size += message.size
            if len(found) >= limit or size > self._settings.console.search_bytes_max:
                return found[:limit], False
        return found, all_of_it


def committed_at(event: Event) -> datetime | None:
    """When it was committed; None for an event outside a transaction."""
    text = (event.payload.get("tx") or {}).get("ts")
    if text is None:
        return None
    return datetime.fromisoformat(str(text))
