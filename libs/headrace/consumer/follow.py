"""A pull consumer over the change stream that skips what was applied and notices what was lost.

Promises: events come in stream order; one at or before its lane's watermark is never given out again; messages that
were discarded before this consumer saw them raise `RetentionGapError`, at the start and while following, never pass in
silence.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamState
from nats.js.errors import NotFoundError

from headrace.consumer.event import Event, of_message
from headrace.consumer.watermark import Watermark, WatermarkStore
from headrace.contract.events import decode
from headrace.errors import HeadraceError
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.jetstream.large import LargeStore

FETCH_MESSAGES = 500
FETCH_WAIT_S = 1.0
GAP_CHECK_S = 5.0
INACTIVE_S = 60.0
ACK_MESSAGES = 100
ACK_PENDING_MAX = 20_000
ACK_WAIT_S = 300.0


class StreamMissingError(HeadraceError):
    """The change stream isn't there."""

    remedy = "Start the suite (`headrace up`), or `headrace init`; HEADRACE_STREAM names the stream."


class RetentionGapError(HeadraceError):
    """The stream no longer holds messages that this consumer has not seen."""

    remedy = "Bootstrap the tables again from a snapshot, then follow from its LSN."

    def __init__(self, first_lost: int, last_lost: int) -> None:
        super().__init__(f"stream sequences {first_lost} to {last_lost} were discarded before they were read")
        self.first_lost = first_lost
        self.last_lost = last_lost


class Start(StrEnum):
    """Where a consumer without a watermark begins."""

    ALL = "all"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What to follow: `durable` names a consumer that the server remembers."""

    stream: str = "CDC"
    filters: tuple[str, ...] = ()
    durable: str | None = None
    start: Start = Start.ALL
    start_seq: int | None = None


@dataclass(slots=True)
class Consumer:
    """An open subscription: iterate over it, call `done` after applying each event."""

    _js: JetStreamContext
    _subscription: Subscription
    _store: WatermarkStore
    _pull: JetStreamContext.PullSubscription
    _marks: dict[str, Watermark]
    # Everything of the stream up to this sequence was seen, or does not concern us.
    _seen_seq: int
    _ready: deque[tuple[Event, Msg]] = field(default_factory=deque)
    _current: tuple[Event, Msg] | None = None
    _unacknowledged: list[Msg] = field(default_factory=list)
    _checked_at: float = 0.0
    _dictionaries: DictionaryReader = field(init=False)

    def __post_init__(self) -> None:
        self._dictionaries = DictionaryReader(self._js)

    @property
    def seen_seq(self) -> int:
        """Everything of the stream up to this sequence was given out and done, or does not concern this consumer."""
        return self._seen_seq

    @property
    def has_more(self) -> bool:
        """Whether more has come already, so that the next one takes no waiting."""
        return bool(self._ready)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        while True:
            event = await self.next()
            if event is not None:
                yield event

    async def next(self, wait_s: float = FETCH_WAIT_S) -> Event | None:
        """The next event that is not applied yet; None when none came within `wait_s`."""
        if await self.peek(wait_s) is None:
            return None
        event, message = self._ready[0]
        # Before it is taken: what can't be had now can be asked for again.
        self._current = (await self._whole(event), message)
        self._ready.popleft()
        return self._current[0]

    async def peek(self, wait_s: float = FETCH_WAIT_S) -> Event | None:
        """What `next` will give out, without taking it (and as the message has it, be it a reference)."""
        if not self._ready:
            await self._fetch(wait_s)
        while self._ready:
            if not self._applied(self._ready[0][0]):
                return self._ready[0][0]
            await self._close(*self._ready.popleft())
        return None

    async def take(self, wait_s: float = FETCH_WAIT_S) -> list[Event]:
        """All that has come and is not applied yet; empty when nothing came within `wait_s`.

        For a follower that keeps its watermark in its own transactions: it calls no `done`, and after any failure it
        follows anew from there.
        """
        taken: list[Event] = []
        if await self.peek(wait_s) is None:
            return taken
        while self._ready:
            event, _ = self._ready[0]
            if not self._applied(event):
                taken.append(await self._whole(event) if "reference" in event.payload else event)
            self._ready.popleft()
            if event.closes:
                self._seen_seq = max(self._seen_seq, event.stream_seq)
        return taken

    async def done(self, event: Event, *, with_those_before: Sequence[Event] = ()) -> None:
        """The event is applied: keep the watermark, acknowledge its message.

        So are those given out before it and not said to be done yet, if they are named.
        """
        assert self._current is not None, "done() before an event was taken"
        assert self._current[0] is event, "done() must name the event that was given out last"
        advancing = next((one for one in (event, *reversed(with_those_before)) if one.advances), None)
        if advancing is not None:
            mark = Watermark(advancing.position, event.stream_seq if event.closes else self._seen_seq)
            self._marks[advancing.lane] = mark
            await self._store.save(advancing.lane, mark)
        await self._close(*self._current)

    def _applied(self, event: Event) -> bool:
        """Whether it is done already. A schema event stands beside positions: its version says whether it is news."""
        return event.advances and event.position <= self._marks.get(event.lane, Watermark()).position

    async def _close(self, event: Event, message: Msg) -> None:
        if event.closes:
            self._seen_seq = max(self._seen_seq, event.stream_seq)
            self._unacknowledged.append(message)
            if not self._ready or len(self._unacknowledged) >= ACK_MESSAGES:
                await self.acknowledge()

    async def acknowledge(self) -> None:
        """Tell the server how far a durable consumer is; the last acknowledgement covers those before it."""
        if self._unacknowledged and self._subscription.durable is not None:
            await self._unacknowledged[-1].ack()
        self._unacknowledged.clear()

    async def _fetch(self, wait_s: float) -> None:
        try:
            messages = await self._pull.fetch(FETCH_MESSAGES, timeout=wait_s)
        except TimeoutError:
            messages = []
        if messages and messages[0].metadata.sequence.stream > self._seen_seq + 1:
            await self._check_gap(messages[0].metadata.sequence.stream)
        elif not messages and time.monotonic() - self._checked_at > GAP_CHECK_S:
            await self._check_gap(None)
        for message in messages:
            await self._dictionaries.learn_for(message.data)
            for event in of_message(message.data, message.subject, message.metadata.sequence.stream):
                self._ready.append((event, message))

    async def _whole(self, event: Event) -> Event:
        """The event itself, where the message only refers to it."""
        reference = event.payload.get("reference")
        if not isinstance(reference, Mapping):
            return event
        large = LargeStore(self._js, str(reference["bucket"]))
        return replace(event, payload=decode(await large.get(str(reference["name"]))))

    async def _check_gap(self, next_seq: int | None) -> None:
        """What lies between what was seen and what comes next must still be in the stream (or have been)."""
        self._checked_at = time.monotonic()
        state = (await self._js.stream_info(self._subscription.stream)).state
        if self._seen_seq and state.first_seq > self._seen_seq + 1:
            raise RetentionGapError(self._seen_seq + 1, state.first_seq - 1)
        if self._seen_seq > state.last_seq:
            raise RetentionGapError(state.last_seq + 1, self._seen_seq)
        if next_seq is not None:
            self._seen_seq = next_seq - 1
        elif (await self._pull.consumer_info()).num_pending == 0:
            # Caught up: what is in the stream and did not come here matches none of our filters.
            self._seen_seq = max(self._seen_seq, state.last_seq)


@contextlib.asynccontextmanager
async def follow(client: Client, subscription: Subscription, store: WatermarkStore) -> AsyncIterator[Consumer]:
    """Follow the stream from the store's watermarks.

    A consumer named `durable` is also known to the server: it shows there how far behind it is, and where the store
    keeps nothing its acknowledgements say where to go on (at least once, then). Opening the same name again takes over
    from whoever has it open.
    """
    js = client.jetstream()
    marks = await store.load()
    try:
        state = (await js.stream_info(subscription.stream)).state
    except NotFoundError as error:
        raise StreamMissingError(f"stream {subscription.stream} does not exist") from error
    seen = max((mark.stream_seq for mark in marks.values()), default=0)
    if subscription.durable is not None:
        acknowledged = await _acknowledged(js, subscription.stream, subscription.durable)
        seen = seen or acknowledged
    if seen and state.first_seq > seen + 1:
        raise RetentionGapError(seen + 1, state.first_seq - 1)
    if seen > state.last_seq:
        # The stream was made anew, or is an older copy: what it had beyond its end is not what comes there now.
        raise RetentionGapError(state.last_seq + 1, seen)
    pull = await js.pull_subscribe(
        "", durable=subscription.durable, stream=subscription.stream, config=_config(subscription, seen)
    )
    if not seen:
        seen = _before_start(subscription, state)
    consumer = Consumer(js, subscription, store, pull, marks, seen)
    try:
        yield consumer
    finally:
        with contextlib.suppress(Exception):
            await consumer.acknowledge()
            await pull.unsubscribe()


async def _acknowledged(js: JetStreamContext, stream: str, durable: str) -> int:
    """How far the durable consumer of an earlier life was acknowledged; it is removed, to begin exactly there.

    Going on with the old one would bring what it had in flight only after newer messages: out of order.
    """
    try:
        info = await js.consumer_info(stream, durable)
    except NotFoundError:
        return 0
    await js.delete_consumer(stream, durable)
    return int(info.ack_floor.stream_seq) if info.ack_floor else 0


def _before_start(subscription: Subscription, state: StreamState) -> int:
    if subscription.start_seq is not None:
        return subscription.start_seq - 1
    return int(state.last_seq) if subscription.start is Start.NEW else max(0, int(state.first_seq) - 1)


def _config(subscription: Subscription, seen: int) -> ConsumerConfig:
    durable = subscription.durable is not None
    config = ConsumerConfig(
        durable_name=subscription.durable,
        filter_subjects=list(subscription.filters) or None,
        ack_policy=AckPolicy.ALL if durable else AckPolicy.NONE,
        ack_wait=ACK_WAIT_S if durable else None,
        max_ack_pending=ACK_PENDING_MAX if durable else None,
        inactive_threshold=None if durable else INACTIVE_S,
    )
    start_seq = seen + 1 if seen else subscription.start_seq
    if start_seq is not None:
        config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, start_seq
    else:
        new = subscription.start is Start.NEW
        config.deliver_policy = DeliverPolicy.NEW if new else DeliverPolicy.ALL
    return config
