"""Events as they are published, for all tabs: one reader of the stream, one ring of messages.

Promises: one consumer in JetStream however many tabs follow, and none while nobody does; every
message is counted exactly; a tab that reads slowly loses rows and learns how many; it
never delays the reader. The ring is bounded in bytes and messages.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.console.reading import EventReader, StoredMessage
from headrace.contract.subjects_and_ids import table_token
from headrace.errors import HeadraceError, describe
from headrace.jetstream.range_reader import Stretch
from headrace.process.lifecycle import Scope

log = logs.logger("console")

LOOK_S = 0.1
RETRY_S = 0.5
MESSAGES_MAX = 20_000
# A new tab continues the ring if the last one left a moment ago.
LINGER_S = 20.0


@dataclass(frozen=True, slots=True)
class FreshMessages:
    """The messages that a tab had not seen yet. `missed`: messages that had left the ring."""

    messages: list[StoredMessage]
    missed: int
    at: int


class LiveRing:
    """The latest messages. Numbers count the messages that were read since the start."""

    def __init__(self, reader: EventReader, bytes_max: int) -> None:
        self._reader = reader
        self._bytes_max = bytes_max
        self._kept: deque[StoredMessage] = deque()
        self._bytes = 0
        self.count = 0
        self.last_seq = 0
        self.followers = 0
        self._left_at = 0.0
        self._stretch: Stretch | None = None
        self.news = asyncio.Event()

    @property
    def first_seq(self) -> int | None:
        """The oldest sequence in the ring."""
        if self._kept:
            return self._kept[0].seq
        return None

    async def run(self, scope: Scope) -> None:
        """Read while somebody follows."""
        while not scope.stopping.is_set():
            try:
                await self._follow(scope)
            except (HeadraceError, NatsError, OSError) as error:
                log.info("live_reading_interrupted", reason=describe(error))
                self._stretch = None
                await scope.pause(RETRY_S)

    async def _follow(self, scope: Scope) -> None:
        if not self._in_use():
            await self._close()
            self._forget()
            await scope.pause(LOOK_S)
            return
        # Ten small requests a second cost less than a consumer that is asked to wait.
        first, last = await self._reader.bounds()
        if self.last_seq == 0 or self.last_seq > last or self.last_seq + 1 < first:
            # The first tab, another stream, or one that discarded what was not read: tabs see
            # the jump by the sequence.
            await self._close()
            self._forget()
            self.last_seq = last
        if last <= self.last_seq:
            await scope.pause(LOOK_S)
            return
        await self._read(last)

    async def _read(self, last: int) -> None:
        """Read up to here, with one consumer for as long as somebody follows."""
        if self._stretch is None:
            self._stretch = self._reader.stretch(self.last_seq + 1)
        began = self.last_seq
        async for message in self._reader.messages_of(self._stretch, last):
            self._add(message)
        if self.last_seq == began:
            # The server deletes a consumer that was idle for long, and removed messages leave
            # nothing to read: the next one starts behind what was asked for.
            await self._close()
            self.last_seq = last

    async def _close(self) -> None:
        if self._stretch is not None:
            stretch = self._stretch
            self._stretch = None
            await stretch.close()

    def _in_use(self) -> bool:
        now = asyncio.get_running_loop().time()
        # Refreshed while tabs are open, so that the time counts from the moment when the last one
        # left.
        if self.followers:
            self._left_at = now
        return now - self._left_at < LINGER_S and self._left_at > 0

    def _add(self, message: StoredMessage) -> None:
        self._kept.append(message)
        self._bytes += message.size
        self.count += 1
        self.last_seq = message.seq
        # By payload bytes: a few large rows must not keep a thousand times more than many small.
        while self._bytes > self._bytes_max or len(self._kept) > MESSAGES_MAX:
            self._bytes -= self._kept.popleft().size
        self.news.set()
        self.news.clear()

    # `count` continues, so that a tab's place never means another message.
    def _forget(self) -> None:
        self._kept.clear()
        self._bytes = 0
        self.last_seq = 0

    def after(self, at: int) -> FreshMessages:
        """The messages after the first `at` ones."""
        # Numbers of messages, not sequences: other sources leave holes in those.
        oldest = self.count - len(self._kept)
        missed = max(0, oldest - at)
        fresh = list(self._tail(self.count - max(at, oldest)))
        return FreshMessages(fresh, missed, self.count)

    def _tail(self, number: int) -> Iterator[StoredMessage]:
        # From the end, where a deque is quick: a tab is a few messages behind.
        begin = len(self._kept) - number
        for place in range(begin, len(self._kept)):
            yield self._kept[place]

    def place_of(self, seq: int) -> int | None:
        """The number of messages up to this sequence; None if the ring doesn't reach back, or has
        not read so far: then it is another stream's sequence.
        """
        first = self.first_seq
        if first is None or seq + 1 < first or seq > self.last_seq:
            return None
        # Sequences have holes, so a tab's place is counted and not computed.
        later = sum(1 for message in self._kept if message.seq > seq)
        return self.count - later


def by_table(messages: list[StoredMessage], limit: int = 200) -> dict[str, str]:
    """The number of events of each table, of at most `limit` tables."""
    counts = Counter(
        table_token(event.schema, event.table)
        for message in messages
        for event in message.events
        if event.table
    )
    return {token: str(number) for token, number in counts.most_common(limit)}
