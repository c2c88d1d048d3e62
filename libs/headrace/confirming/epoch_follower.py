"""Follows one run of epochs: frames in, changes into a store, LSNs confirmed.

Lives from one reading of the store's durable end to the next doubt: an error of the store ends
it, asks the wal-reader for a new epoch, and the service creates both again. Within it, new epochs
of the wal-reader are simply replays. Promises: an LSN is confirmed only after the store reported it
durable, and in the epoch in which it did; entries reach the store in order and without a hole.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import TimeoutError as NatsTimeoutError

from headrace import log as logs
from headrace.bus import control, subjects
from headrace.bus.frame import Opening, frame_name
from headrace.bus.receiver import FrameReceiver
from headrace.confirming.change_store import TICK_S, ChangeStore, Demand, Stored, Taken
from headrace.errors import describe
from headrace.lsn import format_lsn
from headrace.postgres.relation_facts import ReadingAbandonedError
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

# Control and data share one subscription queue; the credit bounds it while the wal-reader waits for
# this confirmer, the bytes' limit when it doesn't. This only has to be larger.
QUEUE_MESSAGES_MAX = 1_000_000


class EpochFollower:
    """`confirmer` is the name by which the wal-reader awaits it, `session` is one of its life."""

    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        client: Client,
        store: ChangeStore,
        confirmer: str,
        session: str,
        suite: str = "",
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._client = client
        self._store = store
        self._confirmer = confirmer
        self._log = logs.logger(confirmer)
        self._source = settings.source.slot
        self._receiver = FrameReceiver(confirmer, session)
        self._receiver.suite = suite
        # What was confirmed last. In a new epoch, what the store contained before counts as
        # confirmed until a frame asks: this confirmer must not seem ahead of others, which can't
        # have confirmed anything yet.
        self._confirmed = Stored(0, waiting=False)

    async def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Follow until the service stops or `is_over`; raises when the outcome of something is in
        doubt.
        """
        subscription = await self._client.subscribe(
            subjects.frames(self._source),
            pending_msgs_limit=QUEUE_MESSAGES_MAX,
            pending_bytes_limit=4 * self._settings.bus.in_flight_bytes_max
            + self._client.max_payload,
        )
        try:
            # A relation that the stop left without a shape: its rows must not be taken in the shape
            # that it had before. They come again, with all that follows them.
            with contextlib.suppress(ReadingAbandonedError):
                await self._follow(subscription, is_over)
            await self._leave()
        except BaseException as error:
            await self._give_up(error)
            raise
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    async def _follow(self, subscription: Subscription, is_over: Callable[[], bool]) -> None:
        await self._send(self._receiver.join())
        again_s = TICK_S
        while not self._scope.stopping.is_set() and not is_over():
            message = await _next(subscription, again_s)
            if message is not None:
                await self._on_frame(message.data)
            again_s = await self._between_frames(more=subscription.pending_msgs > 0)
            if message is None:
                await self._on_silence()

    async def _on_frame(self, data: bytes) -> None:
        self._scope.health.stats.count("frames_received")
        received = self._receiver.receive(data, time.monotonic())
        if received.reply is not None:
            await self._send(received.reply)
        if received.opening is not None:
            await self._on_opening(received.opening)
        name = frame_name(self._receiver.epoch, self._receiver.seq)
        stored = await self._store.take(Taken(name, received.entries))
        if received.opening is not None:
            self._confirmed = stored
        if self._scope.stopping.is_set():
            # The store may have left the frame's rest: there is no credit for it.
            return
        if received.flush:
            stored = await self._store.store(Demand.ALL)
        if received.entries or received.confirm:
            # A wal-reader that was silent and continues its epoch opens no new one.
            self._scope.health.unblock("bus")
            await self._confirm(stored)

    async def _on_opening(self, opening: Opening) -> None:
        await self._store.on_epoch(opening)
        self._scope.health.started()
        self._scope.health.unblock("bus")
        self._log.info(
            "epoch_joined", epoch=self._receiver.epoch, confirmed=format_lsn(opening.confirmed_lsn)
        )

    async def _between_frames(self, *, more: bool) -> float:
        """Let the store write; how soon it is to be asked again."""
        stored = await self._store.store(Demand.LITTLE if more else Demand.MORE)
        if stored.lsn > self._confirmed.lsn or (self._confirmed.waiting and not stored.waiting):
            await self._confirm(stored)
        return stored.again_s

    async def _on_silence(self) -> None:
        join = self._receiver.tick(time.monotonic())
        if join is not None:
            self._scope.health.block("bus", "no frames from wal-reader")
            await self._send(join)

    async def _confirm(self, stored: Stored) -> None:
        """Return credit for the frames that were taken, and the LSN that is durable."""
        self._confirmed = stored
        self._receiver.confirmed_lsn = max(self._receiver.confirmed_lsn, stored.lsn)
        if self._receiver.following:
            await self._send(self._receiver.confirm(settled=not stored.waiting))
            failpoint(f"{self._confirmer}.after_confirm")

    async def _leave(self) -> None:
        """Stop in order: what is whole is stored and confirmed; the rest comes again."""
        stored = await self._store.store(Demand.ALL)
        with contextlib.suppress(TimeoutError):
            await self._confirm(stored)
            await self._client.flush()

    async def _give_up(self, error: BaseException) -> None:
        """The next follower starts from the store's end and ignores frames in flight."""
        if self._client.is_connected and not self._scope.stopping.is_set():
            await asyncio.shield(self._send(self._receiver.restart(describe(error))))

    async def _send(self, message: control.Control) -> None:
        await self._client.publish(subjects.control(self._source), control.encode(message))


async def _next(subscription: Subscription, again_s: float) -> Msg | None:
    try:
        return await subscription.next_msg(timeout=again_s)
    except NatsTimeoutError:
        return None
