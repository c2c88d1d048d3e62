"""The log of acts: who did what, when and with which result; and what was refused.

An append-only stream: JetStream refuses to delete or purge its messages. An act happens only after
its beginning is in the log, so that no act is missing there. Never contains a value of a row.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import orjson
from aiohttp import web
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from headrace import log as logs
from headrace.console.access import Caller
from headrace.console.last_known import stamp
from headrace.console.positions import number_in
from headrace.console.problem import ProblemError, unavailable
from headrace.settings import Settings

log = logs.logger("console")

BYTES_MAX = 256 << 20
PUBLISH_TIMEOUT_S = 5.0
# Someone who asks forever must not fill the log: the process's own log has the rest.
REFUSALS_PER_MINUTE = 60
# An act ends at most so many entries after its beginning.
NEAR = 100


class ActsLog:
    def __init__(self, settings: Settings) -> None:
        self._stream = settings.console.acts_stream
        self._subject = f"headrace_acts.{settings.source.slot}"
        self._client: Client | None = None
        self._refusals = 0
        self._minute = 0.0

    async def connect(self, client: Client) -> None:
        """Use this connection, and create the stream if it is missing."""
        js = client.jetstream()
        try:
            await js.stream_info(self._stream)
        except NotFoundError:
            # Limited by size, with the oldest discarded only by the server.
            config = StreamConfig(
                name=self._stream,
                subjects=["headrace_acts.>"],
                max_bytes=BYTES_MAX,
                deny_delete=True,
                deny_purge=True,
                description="Headrace: the console's log of acts",
            )
            await js.add_stream(config)
            log.info("acts_stream_created", stream=self._stream)
        self._client = client

    async def note(  # noqa: PLR0913  # what an entry consists of
        self,
        request: web.Request,
        caller: Caller | None,
        act: str,
        obj: str | None,
        *,
        plan: str | None = None,
        reason: str = "",
        result: str = "done",
        detail: str = "",
        entry: str = "",
    ) -> str:
        """Add an entry, or the end of the one that is named; returns its ID."""
        noted = {
            "id": entry or secrets.token_hex(8),
            "at": stamp(),
            "user": caller.user if caller is not None else None,
            "role": caller.role.word if caller is not None else None,
            "address": request.remote or "",
            "act": act,
            "object": obj,
            "plan": plan,
            "reason": reason[:200],
            "result": result,
            "detail": detail[:500],
        }
        log.info("act", act=act, object=obj, user=noted["user"], result=result)
        # Without the log there is no act: it would be missing there forever.
        if self._client is None or not self._client.is_connected:
            raise unavailable("NATS is not connected, so the act can't be logged.")
        async with asyncio.timeout(PUBLISH_TIMEOUT_S):
            await self._client.jetstream().publish(self._subject, orjson.dumps(noted))
        return str(noted["id"])

    async def note_refusal(
        self, request: web.Request, caller: Caller | None, problem: ProblemError
    ) -> None:
        """Log a refused request, as far as possible."""
        what = f"{request.method} {request.path[:200]}"
        log.warning("request_refused", request=what, code=problem.code, peer=request.remote)
        now = asyncio.get_running_loop().time()
        if now - self._minute > 60:
            self._minute = now
            self._refusals = 0
        self._refusals += 1
        # An anonymous GET without a session is how every sign-in begins.
        routine = problem.code == "sign_in" and request.method == "GET"
        if self._refusals > REFUSALS_PER_MINUTE or routine:
            return
        try:
            await self.note(request, caller, what, None, result="refused", detail=problem.detail)
        except (ProblemError, NatsError, TimeoutError):
            log.warning("refusal_not_stored", request=what)

    async def page(self, limit: int, cursor: str) -> tuple[list[dict[str, Any]], str | None]:
        """Entries, the newest first, and where the next page begins."""
        if self._client is None or not self._client.is_connected:
            raise unavailable("NATS is not connected, so the log can't be read.")
        js = self._client.jetstream()
        state = (await js.stream_info(self._stream)).state
        seq = int(state.last_seq)
        ended: set[str] = set()
        asked = number_in(cursor)
        if asked is not None:
            seq = min(asked, seq)
            ended = await self._near(range(seq + 1, min(seq + NEAR, int(state.last_seq)) + 1))
        # Message by message: pages are short, and a consumer would need more permissions.
        found: list[dict[str, Any]] = []
        while seq >= max(1, int(state.first_seq)) and len(found) < limit:
            noted = await self._entry(js, seq)
            # An act's end stands behind its beginning, and replaces it here and on the page before.
            if noted is not None and noted["id"] not in ended:
                found.append(noted)
                ended.add(noted["id"])
            seq -= 1
        following = None
        if seq >= int(state.first_seq) > 0:
            following = str(seq)
        return found, following

    async def _entry(self, js: JetStreamContext, seq: int) -> dict[str, Any] | None:
        message = await js.get_msg(self._stream, seq)
        # Several suites may share the stream.
        if message.subject != self._subject:
            return None
        found: dict[str, Any] = orjson.loads(message.data or b"{}")
        return found

    async def _near(self, places: range) -> set[str]:
        """The IDs of the entries after a page."""
        assert self._client is not None, "connected before"
        js = self._client.jetstream()
        entries = await asyncio.gather(*(self._entry(js, place) for place in places))
        return {one["id"] for one in entries if one is not None}
