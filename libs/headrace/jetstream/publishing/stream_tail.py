"""The tail of a stream: its actual content, read back from the server.

The stream's own messages decide how far a source has been delivered, not the memory of
acknowledgements: a PubAck is not an fsync, and a server may come back with an older store.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from headrace.contract.events import ID_HEADER
from headrace.errors import HeadraceError
from headrace.jetstream import bulk
from headrace.jetstream.holes import Hole, jumps, keeps_all
from headrace.jetstream.range_reader import Stretch, fields
from headrace.lsn import Position

# The number of messages read first in a backward search.
_LOOK_BACK = 50


class TailError(HeadraceError):
    """The stream could not be read to its end."""

    retry = True


@dataclass(frozen=True, slots=True)
class TailMark:
    """The content of a message of ours: its ID, and the position up to which it takes the stream
    (None: it doesn't move it).

    In batches, `lane` is the table's token with the position of its last event. If that is beyond
    `position`, earlier events of other tables are still missing.
    """

    msg_id: str
    position: Position | None
    lane: tuple[str, Position] | None = None

    @property
    def settles(self) -> bool:
        """Whether every message of this source up to here is in the stream."""
        return self.position is not None and (self.lane is None or self.lane[1] <= self.position)


# From a message's payload and headers to its mark; None for a message of another source.
Reader = Callable[[bytes, dict[str, str]], TailMark | None]
# From a message's header and payload as bytes: whether it may have a mark. A quick look at what
# others wrote, of which there may be much; True wherever there is doubt.
Suspect = Callable[[bytes, bytes], bool]


@dataclass(slots=True)
class Tail:
    """A stream's end from the view of one source."""

    first_seq: int
    last_seq: int
    created: str
    # The source's last position in the stream, with the sequence and the id of its message. None if
    # nothing of the source was found in what was read.
    position: Position | None = None
    position_seq: int = 0
    position_id: str = ""
    # Ids of this source's messages after that position which did not advance it (schema events).
    ids_after: set[str] = field(default_factory=set)
    # Whether the stream supports atomic batches.
    atomic: bool = False
    # Positions of single tables beyond that position, by token.
    lanes: dict[str, Position] = field(default_factory=dict)
    # Our last message with a position, of the source or of one of its tables.
    ours_seq: int = 0
    # The number of missing messages that nats-server knows of, and the holes found while reading.
    gone: int = 0
    holes: list[Hole] = field(default_factory=list)
    messages: int = 0
    duplicate_window_s: float = 0.0
    # Whether the server may know ids of messages of ours that were removed from the stream and are
    # to be published again: it would skip them.
    ids_in_doubt: bool = False

    def lacks_some_behind(self, seq: int) -> bool:
        """Whether messages behind a stream sequence were removed."""
        if not self.last_seq:
            return False
        # Messages at the front are gone if the first is beyond the next one, and in the middle if
        # there are fewer than the sequences between first and last.
        return self.first_seq > seq + 1 or self.messages <= self.last_seq - self.first_seq

    def see(self, seq: int, mark: TailMark) -> None:
        if mark.lane is not None:
            self.lanes[mark.lane[0]] = mark.lane[1]
        if mark.position is None:
            self.ids_after.add(mark.msg_id)
            return
        self.ours_seq = seq
        # A table's array may be ahead of other tables, whose earlier changes are still missing: the
        # resume point stays where everything before it is in the stream.
        if not mark.settles:
            self.position = self.position or mark.position
        else:
            self.position = mark.position
            self.position_seq = seq
            self.position_id = mark.msg_id
            # Events without a position that come before a position are covered by it.
            self.ids_after.clear()


@dataclass(eq=False)
class StreamTail:
    _js: JetStreamContext
    _stream: str
    _read: Reader
    _suspect: Suspect | None = None

    async def state(self) -> Tail:
        info = await self._js.stream_info(self._stream)
        atomic = bool(info.config.allow_atomic)
        return Tail(
            info.state.first_seq,
            info.state.last_seq,
            str(info.created or ""),
            atomic=atomic,
            gone=(info.state.num_deleted or 0) if keeps_all(info.config) else 0,
            messages=info.state.messages,
            duplicate_window_s=float(info.config.duplicate_window or 0),
        )

    async def mark_at(self, seq: int) -> TailMark | None:
        """Our message at `seq`; None when it is another's or not there any more."""
        try:
            message = await self._js.get_msg(self._stream, seq=seq)
        except NotFoundError:
            return None
        return self._read(message.data or b"", message.headers or {})

    async def id_at(self, seq: int) -> str | None:
        """The id of any message at `seq` ("" if it has none); None if the message is gone."""
        try:
            message = await self._js.get_msg(self._stream, seq=seq)
        except NotFoundError:
            return None
        # Messages that the duplicate window would skip carry their id in a header of ours.
        headers = message.headers or {}
        return str(headers.get("Nats-Msg-Id") or headers.get(ID_HEADER, ""))

    async def after(self, seq: int) -> Tail:
        """Every message of this source after stream sequence `seq`, up to the current end."""
        tail = await self.state()
        # Nothing is new, or everything was removed: an empty stream keeps its last sequence.
        if tail.last_seq <= seq or tail.last_seq < tail.first_seq:
            return tail
        # By far the usual case: only one source in the stream, its last event at the end.
        last = await self.mark_at(tail.last_seq)
        if last is not None and last.settles:
            tail.see(tail.last_seq, last)
            return tail
        stretch = self._stretch(max(seq + 1, tail.first_seq, 1))
        try:
            await self._scan(tail, stretch)
        finally:
            await stretch.close()
        return tail

    async def last_mark(self, first_seq: int, last_seq: int) -> TailMark | None:
        """The mark of our last message with a position in this range."""
        # Backward, in steps that grow: usually a message of ours is near the end, however long the
        # stream is.
        width = _LOOK_BACK
        while last_seq >= first_seq:
            begin = max(first_seq, last_seq - width + 1)
            found = [mark async for mark in self._marks(begin, last_seq)]
            if found:
                return found[-1]
            last_seq, width = begin - 1, 4 * width
        return None

    async def first_settled(self, first_seq: int, last_seq: int) -> TailMark | None:
        """The mark of our first message in this range after which no earlier change follows."""
        async for mark in self._marks(first_seq, last_seq):
            if mark.settles:
                return mark
        return None

    async def _marks(self, first_seq: int, last_seq: int) -> AsyncIterator[TailMark]:
        """The marks of our messages with a position in this range."""
        stretch = self._stretch(first_seq)
        try:
            async for found in stretch.read(last_seq):
                for seq, header, payload in found:
                    if seq <= last_seq and (mark := self._mark_of(header, payload)):
                        yield mark
        finally:
            await stretch.close()

    def _mark_of(self, header: bytes, payload: bytes) -> TailMark | None:
        if self._suspect is not None and not self._suspect(header, payload):
            return None
        mark = self._read(payload, fields(header))
        return mark if mark is not None and mark.position is not None else None

    @contextlib.asynccontextmanager
    async def watched(self, seq: int) -> AsyncIterator[Callable[[], Awaitable[Tail]]]:
        """`after` in steps: each call reports what was added since the one before."""
        stretch: Stretch | None = None
        at = seq

        async def look() -> Tail:
            nonlocal stretch, at
            tail = await self.state()
            if tail.last_seq > at and tail.last_seq >= tail.first_seq:
                # One server-side consumer for all looks: creating one for each would take longer
                # than the reading.
                stretch = stretch or self._stretch(max(at + 1, tail.first_seq, 1))
                await self._scan(tail, stretch)
                at = tail.last_seq
            return tail

        try:
            yield look
        finally:
            if stretch is not None:
                await stretch.close()

    def _stretch(self, first_seq: int) -> Stretch:
        return Stretch(bulk.connection_of(self._js), self._stream, first_seq)

    async def _scan(self, tail: Tail, stretch: Stretch) -> None:
        at = stretch.at
        async for found in stretch.read(tail.last_seq):
            # No filter is set, so a jump in the sequences means that messages are missing.
            tail.holes += jumps([seq for seq, _, _ in found], at)
            at = found[-1][0]
            for seq, header, payload in found:
                # Decoding is what costs: most of a shared stream belongs to others, and can't
                # contain the source's name.
                if self._suspect is None or self._suspect(header, payload):
                    mark = self._read(payload, fields(header))
                    if mark is not None and seq <= tail.last_seq:
                        tail.see(seq, mark)
        # The server may simply be slow. Only messages that are proven to be gone may be left
        # unread, since one of them could be ours.
        if stretch.at < tail.last_seq:
            await self._check_end(tail, stretch.at)

    async def _check_end(self, tail: Tail, at: int) -> None:
        """Raise unless the messages that could not be read are gone."""
        state = await self.state()
        # Everything up to the end was removed while it was being read, or the stream was purged or
        # replaced.
        if state.first_seq > tail.last_seq or state.last_seq < tail.last_seq:
            return
        if not await self._deleted(at + 1, tail.last_seq):
            raise TailError(f"stream {self._stream} could not be read beyond {at}")

    async def _deleted(self, start: int, end: int) -> bool:
        """Whether the last message was deleted: then no fetch will ever return it."""
        if start > end:
            return True
        try:
            await self._js.get_msg(self._stream, seq=end)
        except NotFoundError:
            return True
        return False
