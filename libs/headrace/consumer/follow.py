"""A pull consumer of the change stream that skips applied events and reports lost ones.

Promises: events come in stream order; one at or before its lane's watermark is never given out
again; messages that were discarded before this consumer saw them raise `RetentionGapError`, at the
start and while following, and are never skipped silently. So do messages that are missing from the
middle of the stream: all of them if every subject is followed; with filters, the ones that
nats-server lists as deleted (docs/adr/0026).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamInfo, StreamState
from nats.js.errors import BadRequestError, NotFoundError

from headrace.consumer.event import Event
from headrace.consumer.messages import events_of
from headrace.consumer.pull import Delivered, Pull, RetentionGapError, StreamMissingError
from headrace.consumer.subscription import Start, Subscription
from headrace.consumer.watermark import Watermark, WatermarkStore
from headrace.contract.events import decode
from headrace.errors import DecodeError
from headrace.jetstream.dictionaries import DictionaryMissingError, DictionaryReader
from headrace.jetstream.holes import Hole, jumps, keeps_all, known_holes, within
from headrace.jetstream.object_store import ObjectStore
from headrace.lsn import ORIGIN

FETCH_WAIT_S = 1.0
# How long a discarded message may go unnoticed on a quiet stream.
GAP_CHECK_S = 5.0
ACK_MESSAGES = 100
# Two readers that open the same name at the same moment may each delete the other's consumer.
OPENINGS = 3


@dataclass(slots=True)
class Consumer:
    """An open subscription: iterate over it, and call `done` after applying each event.

    `follow` opens one. Reading raises `RetentionGapError` if the stream has lost messages that this
    consumer has not seen, and `ReaderTakenOverError` if another reader has opened the same durable
    consumer.
    """

    _js: JetStreamContext
    _subscription: Subscription
    _store: WatermarkStore
    _pull: Pull
    _marks: dict[str, Watermark]
    # Every message of the stream up to this sequence is done or irrelevant; the same for messages
    # read, None if it started with the first available message and no message has arrived.
    _seen_seq: int
    _read_seq: int | None
    # Messages that have arrived and are not decoded; events of decoded ones that are not returned.
    _unread: deque[Delivered] = field(default_factory=deque)
    _ready: deque[Event] = field(default_factory=deque)
    # A message that the server delivers again, to check that it is the one that was read; and how
    # far everything was seen in an earlier run.
    _overlap: int = 0
    _begun: int = 0
    # Returned and not done.
    _current: Event | None = None
    # The number of messages that are done since the last acknowledgement.
    _unacknowledged: int = 0
    # The last message that was decoded; when the stream was last checked for losses.
    _given_seq: int = 0
    _checked_at: float = 0.0
    _dictionaries: DictionaryReader = field(init=False)

    def __post_init__(self) -> None:
        self._dictionaries = DictionaryReader(self._js, self._subscription.state_bucket)

    @property
    def seen_seq(self) -> int:
        """The stream sequence up to which every message is done, or irrelevant to this consumer."""
        return self._seen_seq

    @property
    def given_seq(self) -> int:
        """The stream sequence of the last message that was read, now or in an earlier run."""
        return self._given_seq

    @property
    def has_more(self) -> bool:
        """Whether the next event is available without waiting."""
        return bool(self._ready) or self._pull.has_more

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        while True:
            event = await self.next()
            if event is not None:
                yield event

    async def next(self, wait_s: float = FETCH_WAIT_S) -> Event | None:
        """Return the next event that is not applied yet, or None if there is none for `wait_s`."""
        event = await self.peek(wait_s)
        if event is None:
            return None
        if "reference" in event.payload:
            # Before it is removed: an object that is unavailable now can be requested again.
            event = await self._whole(event)
        self._ready.popleft()
        self._current = event
        return event

    async def peek(self, wait_s: float = FETCH_WAIT_S) -> Event | None:
        """Return the event that `next` will return, without removing it.

        Of a large event, the payload is still the reference that the message contains.
        """
        ready = self._ready
        if not ready:
            await self._fetch(wait_s)
        while ready:
            if not self._applied(ready[0]):
                return ready[0]
            # A skipped event counts as done: otherwise the acknowledgement, and with it the visible
            # lag, would stop at a range that was applied in an earlier run.
            await self._close(ready.popleft())
        return None

    async def take(self, wait_s: float = FETCH_WAIT_S) -> list[Event]:
        """Return all available events that are not applied yet, after at most `wait_s`.

        This is for programs that store the watermark in their own transactions: they don't call
        `done`, and after any failure they follow again from the watermark.
        """
        if await self.peek(wait_s) is None:
            return []
        taken = []
        while self._ready:
            event = self._ready[0]
            if not self._applied(event):
                if "reference" in event.payload:
                    taken.append(await self._whole(event))
                else:
                    taken.append(event)
            self._ready.popleft()
            if event.closes:
                self._seen_seq = max(self._seen_seq, event.stream_seq)
        return taken

    async def take_done(self, events_max: int) -> list[Event]:
        """Return events that are available and not applied yet, and mark them as applied.

        For programs that store their position in their own transactions: as `next` and `done` for
        each, with less work. Ends before an event whose message only refers to it; never waits for
        more events.
        """
        taken: list[Event] = []
        ready = self._ready
        newest: dict[str, Event] = {}
        while ready and len(taken) < events_max and "reference" not in ready[0].payload:
            event = ready.popleft()
            before = newest.get(event.lane)
            if not event.advances:
                taken.append(event)
            elif event.position > before.position if before else not self._applied(event):
                taken.append(event)
                newest[event.lane] = event
            if event.closes:
                self._seen_seq = max(self._seen_seq, event.stream_seq)
                self._unacknowledged += 1
        for lane, event in newest.items():
            self._marks[lane] = Watermark(event.position, self._seen_seq)
            await self._store.save(lane, self._marks[lane])
        if not ready or self._unacknowledged >= ACK_MESSAGES:
            await self.acknowledge()
        return taken

    async def done(self, event: Event, *, with_those_before: Sequence[Event] = ()) -> None:
        """Mark the event that was returned last as applied: store the watermark, and acknowledge
        its message.

        Pass earlier events that are not marked yet in `with_those_before`, to mark them as well.
        """
        assert self._current is event, "done() must name the event that was given out last"
        done = (event, *reversed(with_those_before))
        advancing = next((one for one in done if one.advances), None)
        if advancing is not None:
            # A message may contain several events: its sequence is passed only with the last one.
            # Until then the position distinguishes the events that are done.
            mark = Watermark(
                advancing.position, event.stream_seq if event.closes else self._seen_seq
            )
            self._marks[advancing.lane] = mark
            # Saved before the acknowledgement: after a crash in between, the message is delivered
            # again and skipped.
            await self._store.save(advancing.lane, mark)
        self._current = None
        await self._close(event)

    def _applied(self, event: Event) -> bool:
        """Whether it is done already. A schema event has no position: its version says whether it
        is new.
        """
        mark = self._marks.get(event.lane)
        return mark is not None and event.position <= mark.position and event.advances

    async def _close(self, event: Event) -> None:
        if event.closes:
            self._seen_seq = max(self._seen_seq, event.stream_seq)
            self._unacknowledged += 1
            if not self._ready or self._unacknowledged >= ACK_MESSAGES:
                await self.acknowledge()

    async def acknowledge(self) -> None:
        """Report a durable consumer's progress to the server now.

        `done` does so for every 100 messages, and whenever no further event is available.
        """
        if self._unacknowledged and self._subscription.durable is not None:
            await self._pull.done(self._seen_seq)
        self._unacknowledged = 0

    async def settle(self, stream_seq: int) -> None:
        """Acknowledge all messages up to this one, for programs that read with `take`."""
        if self._subscription.durable is not None:
            await self._pull.done(stream_seq)

    async def _fetch(self, wait_s: float) -> None:
        unread = self._unread
        if not unread:
            unread += await self._pull.read(wait_s)
        # An interrupted check is repeated by the next call. Messages may arrive one by one, so each
        # reading begins with those of the last run until one is new.
        while unread and unread[0][0] <= self._begun:
            await self._pass_over_seen()
            unread += [] if unread else await self._pull.read(wait_s)
        readable = len(unread)
        if unread:
            # Before anything is decoded: an event after a loss must not be returned as if nothing
            # were missing.
            readable = await self._check_between(unread)
        elif time.monotonic() - self._checked_at > GAP_CHECK_S:
            await self._check_idle()
        for _ in range(readable):
            stream_seq, subject, payload, header = unread[0]
            self._ready += await events_of(
                self._dictionaries, payload, subject.decode(), stream_seq, header
            )
            # Only now: an unreadable event must not be skipped by calling again.
            unread.popleft()
            self._given_seq = stream_seq

    async def _whole(self, event: Event) -> Event:
        """The event itself, if the message only refers to it."""
        reference = event.payload.get("reference")
        if not isinstance(reference, Mapping):
            return event
        large = ObjectStore(self._js, str(reference["bucket"]))
        return event._replace(payload=decode(await large.get(str(reference["name"]))))

    async def _pass_over_seen(self) -> None:
        """Before the end of the last run: a message to verify, and messages that no filter matched
        then.
        """
        while self._unread and self._unread[0][0] <= self._begun:
            if self._unread[0][0] == self._overlap:
                await self._check_overlap(self._unread[0])
            self._unread.popleft()

    async def _check_overlap(self, message: Delivered) -> None:
        """The message that a watermark points at: later messages are new only if it is the same
        one.

        In a stream that was recreated, or continued from an older copy, the same sequence may
        contain an event that was never applied. Judged by its number, it would be skipped, along
        with earlier ones.
        """
        stream_seq, subject, payload, _ = message
        with contextlib.suppress(DecodeError, DictionaryMissingError):
            for event in await events_of(self._dictionaries, payload, subject.decode(), stream_seq):
                if event.lane in self._marks and event.advances and not self._applied(event):
                    raise RetentionGapError(stream_seq, stream_seq, rewritten=True)

    async def _check_between(self, messages: Sequence[Delivered]) -> int:
        """The number of messages to read now. Sequences skipped between the last message and these
        must still be in the stream; then no filter wants them.

        Messages before a hole are read first: a reader that records the loss and continues after it
        then has everything before it.
        """
        first = messages[0][0]
        last = messages[-1][0]
        at = first - 1 if self._read_seq is None else self._read_seq
        if last <= at:
            return len(messages)
        # No sequence is skipped, by far the usual case: it costs no request to the server.
        if last - at == len(messages):
            self._read_seq = last
            return len(messages)
        # A skipped sequence is a message that no filter matches, or one that was discarded. Only
        # the stream knows.
        info = await self._js.stream_info(self._subscription.stream)
        self._checked_at = time.monotonic()
        gone = await self._gone(info, jumps([seq for seq, *_ in messages if seq > at], at))
        if gone is None:
            self._read_seq = last
            self._pass_to(first - 1)
            return len(messages)
        before = [seq for seq, *_ in messages if seq < gone.first_lost]
        if not before:
            raise gone
        self._read_seq = max(at, before[-1])
        return len(before)

    async def _check_idle(self) -> None:
        """Messages beyond the last one read either arrive or match no filter; they aren't lost."""
        self._checked_at = time.monotonic()
        info = await self._js.stream_info(self._subscription.stream)
        state = info.state
        # Asked after the stream's state: what is stored in between is outstanding, and nothing is
        # concluded.
        left = await self._pull.outstanding()
        if left is None:
            return
        if self._read_seq is not None:
            _check_reach(self._read_seq, state)
        if left == 0:
            last = state.last_seq
            if self._read_seq is not None and last > self._read_seq:
                last = await self._check_rest(info, self._read_seq + 1)
            self._read_seq = max(self._read_seq or 0, last)
            self._pull.passed(self._read_seq)
            self._pass_to(self._read_seq)

    async def _gone(self, info: StreamInfo, passed: Sequence[Hole]) -> RetentionGapError | None:
        """The first skipped messages that are gone; no filter wants the others."""
        for first, last in passed:
            # Retention removes from the front, so everything before the first message is gone.
            if info.state.first_seq > first:
                return RetentionGapError(first, min(last, info.state.first_seq - 1))
        # A stream that keeps one message per subject, for example, removes from the middle as a
        # rule.
        if not passed or not keeps_all(info.config):
            return None
        gone = list(passed)
        if not _takes_all(self._subscription, info):
            known: list[Hole] = []
            if info.state.num_deleted:
                known = await known_holes(self._js, self._subscription.stream)
            gone = [part for hole in passed for part in within(known, *hole)]
        return RetentionGapError(*gone[0], damaged=True) if gone else None

    async def _check_rest(self, info: StreamInfo, first: int) -> int:
        """The sequence up to which no filter wants a message, from `first` on; raises if some of
        them are gone.
        """
        last = info.state.last_seq
        takes_all = _takes_all(self._subscription, info)
        # The server that delivers messages may lag behind the leader, so ask the leader: what is on
        # its way must not be passed.
        for subject in (None,) if takes_all else self._subscription.filters:
            with contextlib.suppress(NotFoundError):
                there = await self._js.get_msg(
                    self._subscription.stream, seq=first, subject=subject, next=True
                )
                last = min(last, (there.seq or first) - 1)
            if last < first:
                return last
        if (gone := await self._gone(info, [(first, last)])) is not None:
            raise gone
        return last

    def _pass_to(self, stream_seq: int) -> None:
        """Nothing up to here is left to do, except for events that were returned."""
        if self._current is None:
            self._seen_seq = max(self._seen_seq, stream_seq)


@contextlib.asynccontextmanager
async def follow(
    client: Client, subscription: Subscription, store: WatermarkStore
) -> AsyncIterator[Consumer]:
    """Follow the stream from the store's watermarks.

    The server also knows a consumer that has a name (`durable`), and shows how far behind it is. If
    the store keeps nothing, the acknowledgements of such a consumer are the resume point, which
    means at least once. Opening the same name again takes over from its current reader.

    Raises `StreamMissingError` if the stream does not exist, and `RetentionGapError` if it has lost
    messages since the watermarks.
    """
    js = client.jetstream()
    marks = await store.load()
    info = await _stream(js, subscription.stream)
    acknowledged = None
    if subscription.durable is not None:
        acknowledged = await _acknowledged(js, subscription.stream, subscription.durable)
    # A store with watermarks takes precedence: it may not have stored what was acknowledged.
    kept = max((mark.stream_seq for mark in marks.values()), default=acknowledged)
    if kept:
        _check_reach(kept, info.state)
    seen = kept or _before_start(subscription, info, is_new=kept is None)
    # Not the furthest mark of all: a mark without a position has passed messages that no filter
    # matched then.
    overlap = max((mark.stream_seq for mark in marks.values() if mark.position > ORIGIN), default=0)
    pull = await _opened(
        client, subscription, overlap or (None if seen is None else seen + 1), info
    )
    pull.passed(seen or 0)
    consumer = Consumer(
        js,
        subscription,
        store,
        pull,
        marks,
        seen or 0,
        seen,
        _overlap=overlap,
        _begun=kept or 0,
        _given_seq=seen or 0,
    )
    try:
        yield consumer
    finally:
        with contextlib.suppress(Exception):
            await consumer.acknowledge()
            await pull.close()


async def _stream(js: JetStreamContext, stream: str) -> StreamInfo:
    try:
        return await js.stream_info(stream)
    except NotFoundError as error:
        raise StreamMissingError(f"stream {stream} does not exist") from error


async def _opened(
    client: Client, subscription: Subscription, start: int | None, info: StreamInfo
) -> Pull:
    """A reader that starts there; retried once if the previous reader of the name was faster."""
    for opening in range(OPENINGS):
        pull = Pull(client, subscription.stream, subscription.filters, subscription.durable, start)
        try:
            await pull.open(info.created)
        except BadRequestError:
            await pull.close()
            if subscription.durable is None or opening == OPENINGS - 1:
                raise
            # The name exists with another configuration: the other reader created it since ours was
            # deleted. Opening a name takes it over, so the later one wins. A third reader may have
            # deleted it already.
            with contextlib.suppress(NotFoundError):
                await client.jetstream().delete_consumer(subscription.stream, subscription.durable)
        else:
            return pull
    raise AssertionError("the last opening returns or raises")


async def _acknowledged(js: JetStreamContext, stream: str, durable: str) -> int | None:
    """How far the durable consumer of an earlier run was acknowledged; deletes it, to start exactly
    there.

    None if there was none. Reusing the old consumer would deliver its messages in flight only after
    newer ones: out of order.
    """
    try:
        info = await js.consumer_info(stream, durable)
    except NotFoundError:
        return None
    await js.delete_consumer(stream, durable)
    return int(info.ack_floor.stream_seq) if info.ack_floor else 0


def _takes_all(subscription: Subscription, info: StreamInfo) -> bool:
    """Whether the filters want every message: a jump in the sequence is then a loss."""
    subjects = set(info.config.subjects or [">"])
    return not subscription.filters or subjects <= {*subscription.filters}


def _check_reach(read_seq: int, state: StreamState) -> None:
    """The stream must contain the messages after this sequence, and not be another one."""
    if state.first_seq > read_seq + 1:
        raise RetentionGapError(read_seq + 1, state.first_seq - 1)
    if read_seq > state.last_seq:
        # It was recreated, or is an older copy: messages beyond its end would be different ones
        # now.
        raise RetentionGapError(state.last_seq + 1, read_seq, rewritten=True)


def _before_start(subscription: Subscription, info: StreamInfo, *, is_new: bool) -> int | None:
    """The sequence before the start of a new consumer; None for the first available message."""
    if subscription.start_seq is not None:
        return subscription.start_seq - 1
    if is_new and subscription.start is Start.NEW:
        return int(info.state.last_seq)
    return None
