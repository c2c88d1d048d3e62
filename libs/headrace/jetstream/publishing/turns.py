"""Turns of several sources at the end of one stream, so that they don't cut each other's batches.

Turns only decide *when* a batch starts and ends. They don't affect correctness: the server refuses
a message at the wrong position. A refused publisher announces on NATS core that it waits. The
writing publisher then announces itself, ends its batch after a turn's length, and passes the turn
to the publisher that has waited longest. Meanwhile that one reads what is written, because it must
know it before it continues after it; a turn lasts a little longer for one that is far behind.

A note may be lost, late or false, so nobody waits longer than `_WAIT_MAX_S`, and a publisher that
hears of no other writer doesn't wait at all. Publishers of the same source don't hear each other:
they take no turns; one of them is fenced.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from headrace.bus import subjects
from headrace.metrics.counters import Counters
from headrace.timing.waits import wait_for

_TURN_S = 0.2
# The maximum length of a turn if the waiting publisher is far behind, and what counts as that.
_LONG_TURN_S = 0.6
_BEHIND_MESSAGES = 2000
# A writer that was silent for this long is assumed to have stopped writing.
_BELIEVED_S = 0.5
_WAIT_MAX_S = 5.0
_LOOK_S = 0.02
# A publisher with nothing to write for this long passes its turn.
_REST_S = 0.005
# The interval of announcements by waiting and writing publishers, and when a silent one is
# forgotten.
_SAYS_AGAIN_S = 0.1
_FORGOTTEN_S = 1.0
_OTHERS_MAX = 64

# The words of a note: I wait for the turn; I am writing; I pass the turn (to the named publisher).
_WAIT = "wait"
_WRITE = "write"
_PASS = "pass"  # noqa: S105  # a word of the notes, and no secret


@dataclass(slots=True)
class _Waiting:
    """Another waiting publisher: since when, when it last announced it, and whether it has nearly
    caught up.
    """

    since: float
    heard_at: float
    ready: bool


def _never() -> bool:
    """Before `open`, a publisher has nothing in flight."""
    return False


class Turns:
    """One publisher among those of its stream."""

    def __init__(self, client: Client, stream: str, source: str, stats: Counters) -> None:
        self._client = client
        self._subject = subjects.turns(stream)
        self._source = source
        self._stats = stats
        self._me = secrets.token_hex(8)
        self._subscription: Subscription | None = None
        self._is_writing: Callable[[], bool] = _never
        self._waiting: dict[str, _Waiting] = {}
        # The other suite that writes, and until when that is believed.
        self._writer = ""
        self._writes_until = 0.0
        # Our turn began; we wait since; we said last what we do.
        self._began = 0.0
        self._waits_since = 0.0
        self._said_at = 0.0
        # Whether the others know that we wait or write, and not that we no longer do.
        self._told = False
        # The turn came after the last look at the stream's end.
        self._came = False
        # Ends the pause of a waiting publisher as soon as the turn comes.
        self._news = asyncio.Event()
        # Passes the turn after a short rest, unless something is published meanwhile.
        self._resting: asyncio.Task[None] | None = None

    async def open(self, is_writing: Callable[[], bool]) -> None:
        """Listen to the others; `is_writing`: whether this publisher has messages in flight."""
        self._is_writing = is_writing
        self._subscription = await self._client.subscribe(self._subject, cb=self._on_note)

    async def close(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            await asyncio.wait({self._resting})
        if self._subscription is not None and not self._client.is_closed:
            with contextlib.suppress(NatsError):
                await self._subscription.unsubscribe()

    @property
    def others_write(self) -> bool:
        """Whether another publisher has the turn."""
        # A writer that died says nothing more: it is believed for a limited time only.
        return bool(self._writer) and time.monotonic() < self._writes_until

    @property
    def is_over(self) -> bool:
        """Whether it is time to pass the turn to a waiting publisher."""
        if not self._waiting or (successor := self._successor()) is None:
            return False
        waiting = self._waiting[successor]
        # Measured from whichever came later: an old waiting publisher must not end a turn that has
        # just started.
        age_s = time.monotonic() - max(waiting.since, self._began)
        return age_s >= (_TURN_S if waiting.ready else _LONG_TURN_S)

    async def want(self, *, ready: bool = False) -> None:
        """Ask the writing publisher for the turn."""
        # Repeated announcements keep the beginning of the wait, by which the longest waiting is
        # found.
        self._waits_since = self._waits_since or time.monotonic()
        await self._say(_WAIT, ready=ready)

    async def wait(self, new: int) -> bool:
        """After reading this much new at the stream's end: whether to look again a moment later, or
        to write.
        """
        now = time.monotonic()
        # One more look at the stream's end, because the passing publisher's last messages precede
        # its note. They must be read before anything is published behind them (docs/adr/0016).
        if self._came:
            self._came = False
            return True
        # Nobody waits without end for a note: it may be lost, late or forged. Writing too early is
        # harmless, because the server refuses what doesn't fit.
        if not self.others_write or now - self._waits_since > _WAIT_MAX_S:
            await self._begin()
            return False
        if now - self._said_at > _SAYS_AGAIN_S:
            await self.want(ready=new < _BEHIND_MESSAGES)
        self._news.clear()
        await wait_for(self._news, _LOOK_S)
        return True

    async def keep(self) -> None:
        """Announce to the waiting publishers, now and then, that this one still has the turn."""
        if self._waiting and time.monotonic() - self._said_at > _SAYS_AGAIN_S:
            await self._say(_WRITE)

    def pass_on(self, *, more: bool) -> bool:
        """A batch has ended: whether the turn now passes to another, which `tell` announces.

        Without `more` to write, it soon passes. Nothing here waits, so that no batch starts in
        between.
        """
        if self.is_over:
            return self._pass()
        # The others may still believe that this publisher writes, and would wait for nothing.
        if not more and (self._waiting or self._told) and self._resting is None:
            self._resting = asyncio.create_task(self._rest(), name="turn")
        return False

    async def tell(self) -> None:
        """Announce whose turn it is now."""
        await self._say(_PASS, self._writer)

    async def _rest(self) -> None:
        try:
            await asyncio.sleep(_REST_S)
            # Something may have been published during the rest: then the turn is kept.
            if not self._is_writing() and not self._waits_since:
                successor = ""
                if self._pass():
                    successor = self._writer
                await self._say(_PASS, successor)
        finally:
            self._resting = None

    def _pass(self) -> bool:
        successor = self._successor()
        if successor is None:
            return False
        self._believe(successor)
        self._stats.count("turns_passed")
        return True

    async def _begin(self) -> None:
        # A publisher with the stream to itself sends no notes.
        contended = bool(self._writer or self._waiting)
        self._began = time.monotonic()
        self._waits_since = 0.0
        self._writer = ""
        if contended:
            await self._say(_WRITE)

    async def _say(self, word: str, to: str = "", *, ready: bool = False) -> None:
        self._said_at = time.monotonic()
        self._told = word != _PASS
        note = {"word": word, "by": self._me, "source": self._source, "to": to, "ready": ready}
        with contextlib.suppress(NatsError):
            await self._client.publish(self._subject, orjson.dumps(note))

    async def _on_note(self, message: Msg) -> None:
        try:
            note: dict[str, Any] = orjson.loads(message.data)
            word, by, source, to = (str(note[key]) for key in ("word", "by", "source", "to"))
        except (ValueError, KeyError, TypeError):
            return
        # A publisher of the same source is a predecessor or a successor. They don't take turns: the
        # stream's content decides which of them is fenced.
        if by == self._me or source == self._source:
            return
        if word == _WAIT:
            await self._on_wait(by, ready=bool(note.get("ready")))
        elif word == _WRITE:
            self._believe(by)
        elif word == _PASS:
            await self._on_pass(by, to)

    async def _on_wait(self, by: str, *, ready: bool) -> None:
        now = time.monotonic()
        known = self._waiting.get(by)
        # Anyone who may publish on the subject can invent publishers: the memory for them is
        # bounded.
        if known is None and len(self._waiting) >= _OTHERS_MAX:
            return
        if known is None:
            since = now
        else:
            # Announcing again must not lose the place in the queue.
            since = known.since
        self._waiting[by] = _Waiting(since, now, ready)
        # A publisher that waits doesn't write, even if it was heard to write before.
        if by == self._writer:
            self._writer = ""
        # It hears immediately that there is a writer, or it would start after its first look.
        if known is None and self._is_writing():
            await self._say(_WRITE)

    async def _on_pass(self, by: str, to: str) -> None:
        self._waiting.pop(by, None)
        if to not in ("", self._me):
            self._believe(to)
            return
        # The turn is ours, or free: if the writer passes it to nobody in particular, each waiting
        # publisher may try.
        if to == self._me or self._writer == by:
            self._writer = ""
            self._came = True
            self._news.set()
        if to == self._me:
            # One that wrote meanwhile doesn't need it.
            busy = self._waits_since or self._is_writing()
            await self._say(_WRITE if busy else _PASS)

    def _believe(self, writer: str) -> None:
        self._waiting.pop(writer, None)
        self._writer = writer
        self._writes_until = time.monotonic() + _BELIEVED_S

    def _successor(self) -> str | None:
        """The publisher that has waited longest. One that stopped announcing it has died, or has
        written meanwhile.
        """
        now = time.monotonic()
        for other, waiting in tuple(self._waiting.items()):
            if now - waiting.heard_at > _FORGOTTEN_S:
                del self._waiting[other]
        return min(self._waiting, key=lambda other: self._waiting[other].since, default=None)
