"""The answers to snapshot requests: where each one goes, and when.

A request is answered where its caller listens, which only one of its two views may say
(`request_pairing`). Promises: a request that was judged is answered, and one that the work queue
never stored is rejected rather than left without an answer.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from headrace.contract.events import REPLY_HEADER, encode
from headrace.settings import Settings
from headrace.snapshot_responder.other_suites import Neighbours
from headrace.snapshot_responder.request_pairing import Answer, Pairing, View, may_be_told

PAIRING_PATIENCE_S = 5.0
# Above the default of HEADRACE_SNAPSHOT_REQUESTS_MAX, so that it contains all held requests.
_JUDGED_MAX = 4096


class RequestAnswers:
    """Pairs what callers sent with what became of it."""

    def __init__(self, client: Client, settings: Settings, neighbours: Neighbours) -> None:
        self._client = client
        self._settings = settings
        self._neighbours = neighbours
        self._pairing: Pairing[Answer] = Pairing(PAIRING_PATIENCE_S)
        # Requests up to here may have arrived before we subscribed to their reply subjects.
        self._deaf_until = 0
        # The latest requests that were judged, as an ordered set: a redelivered one was answered
        # already, and must not use up the reply subject of an equal request.
        self._judged: dict[int, None] = {}

    async def open(self) -> None:
        """Called once the subscription to reply subjects is in force."""
        info = await self._client.jetstream().stream_info(self._settings.streams.requests)
        self._deaf_until = info.state.last_seq

    async def seen(self, message: Msg) -> None:
        """A request as the core subscription sees it: with its reply subject."""
        inbox = inbox_of(message)
        if inbox and message.reply in {"", inbox}:
            # Its stored copy contains everything needed.
            return
        await self._seen(view_of(message), message.reply)

    async def _seen(self, view: View, reply: str) -> None:
        answer = self._pairing.seen(view, reply, time.monotonic())
        if answer is not None:
            await self._tell(reply, answer.to_a_late_view())

    async def answer(self, message: Msg, sequence: int, answer: Answer) -> None:
        """Answer where its other view says, if that was seen; else where the stored request says.

        Only a reply subject works across accounts; the inbox in the header doesn't.
        """
        again = sequence in self._judged
        self._judged[sequence] = None
        if len(self._judged) > _JUDGED_MAX:
            del self._judged[next(iter(self._judged))]
        inbox = inbox_of(message)
        keep = sequence > self._deaf_until
        if inbox or not again:
            reply = self._pairing.decided(
                view_of(message), answer, time.monotonic(), keep=keep and not inbox
            )
            await self._tell(reply or inbox, answer)

    async def expire(self) -> None:
        """Answer the requests that were seen and never stored."""
        for view, reply in self._pairing.expire(time.monotonic()):
            await self._tell_unstored(view, reply)

    async def _tell_unstored(self, view: View, reply: str) -> None:
        with contextlib.suppress(NatsError, TimeoutError):
            # That suite's responder answers: a rejection from here would contradict it.
            if await self._neighbours.have(token_of(view[0])):
                return
            if await self._are_queued(view[0]):
                await self._seen(view, reply)
            else:
                await self._tell(
                    reply, Answer("", "rejected", "the request could not be stored; send it again")
                )

    async def _are_queued(self, subject: str) -> bool:
        """Whether a request for the subject is still in the queue, because earlier ones take their
        time.
        """
        js = self._client.jetstream()
        sequence = 0
        with contextlib.suppress(NotFoundError):
            while True:
                message = await js.get_msg(
                    self._settings.streams.requests, sequence + 1, subject=subject, next=True
                )
                sequence = int(message.seq or 0)
                if sequence not in self._judged:
                    return True
        return False

    async def _tell(self, reply: str, answer: Answer) -> None:
        await self.send(reply, answer.body())

    async def send(self, reply: str, body: dict[str, Any]) -> None:
        if not reply or not may_be_told(reply):
            return
        # Callers also find the outcome on the INIT stream, so a lost answer harms nobody.
        with contextlib.suppress(NatsError):
            await self._client.publish(reply, encode(body, self._settings.format.encoding))


def inbox_of(message: Msg) -> str:
    """The inbox that a stored request names."""
    return (message.headers or {}).get(REPLY_HEADER, "")


def view_of(message: Msg) -> View:
    """The common key of its two views; an inbox belongs to exactly one request."""
    return message.subject, message.data + inbox_of(message).encode()


def token_of(subject: str) -> str:
    return subject.split(".", 2)[2]
