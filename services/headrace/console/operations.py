"""The acts of operators: pause, resume, request and cancel snapshots."""

from __future__ import annotations

import asyncio
import json
import shlex
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from headrace.console.access import Caller
from headrace.console.cells import Redaction
from headrace.console.json_answers import body_of, caller_of
from headrace.console.plans import STEP, Intent, Plans
from headrace.console.problem import ProblemError, invalid, unavailable
from headrace.console.reading import EventReader
from headrace.console.suite_view import SuiteView
from headrace.console.tables import Tables
from headrace.contract.events import REPLY_HEADER, decode
from headrace.contract.subjects_and_ids import (
    snapshot_cancel_subject,
    snapshot_request_subject,
    split_table_token,
)
from headrace.errors import describe
from headrace.jetstream.state import bucket
from headrace.settings import Settings
from headrace.spark.request import RequestError, parse_conditions, parse_request
from headrace.suite import pause as pauses
from headrace.suite.pause import Pause

# Less than a request may take.
ANSWER_TIMEOUT_S = 10.0


class Operations:
    def __init__(
        self,
        settings: Settings,
        reader: EventReader,
        suite: SuiteView,
        tables: Tables,
        redaction: Redaction,
        plans: Plans,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._suite = suite
        self._tables = tables
        self._redaction = redaction
        self._plans = plans

    async def read_pause(self) -> None:
        """Tell the suite's view whether publishing is paused."""
        state = await bucket(self._reader.client.jetstream(), self._settings.streams.state)
        # The record outlives every process, so it says more than the publisher's figures.
        found = await pauses.read(state, self._settings)
        self._suite.paused = None
        if found.paused:
            at = datetime.fromtimestamp(found.at, UTC).isoformat(timespec="microseconds")
            self._suite.paused = {
                "by": found.by,
                "at": at.replace("+00:00", "Z"),
                "reason": found.reason,
            }

    async def pause(self, request: web.Request) -> web.Response:
        return await self._keep(request, paused=True)

    async def resume(self, request: web.Request) -> web.Response:
        return await self._keep(request, paused=False)

    async def _keep(self, request: web.Request, *, paused: bool) -> web.Response:
        """Plan or do a pause or its end."""
        body = await body_of(request, *STEP)
        state = await bucket(self._reader.client.jetstream(), self._settings.streams.state)
        # Read for the plan: someone else may have paused in the meantime.
        now = await pauses.read(state, self._settings)
        wanted = Pause(
            paused=paused,
            by=f"{caller_of(request).user} in the console",
            reason=str(body.get("reason") or ""),
        )

        async def do() -> tuple[str | None, str]:
            await pauses.write(self._reader.client, state, self._settings, wanted)
            await self.read_pause()
            return None, "Publishing is paused." if paused else "Publishing continues."

        summary = "Publishing continues where it stopped."
        steps = ["The publisher continues.", "It publishes what PostgreSQL has kept meanwhile."]
        if paused:
            summary = "Publishing pauses. Nothing is lost: PostgreSQL keeps its log meanwhile."
            steps = [
                "The publisher stops publishing; snapshots and schemas continue.",
                "PostgreSQL's slot retains the log until you resume: watch the disk's space.",
            ]
        # No error: a second pause replaces the reason, and the plan reports it.
        if now.paused == paused:
            summary = f"It is {'paused' if paused else 'running'} already."
        act = "pause" if paused else "resume"
        intent = Intent(
            act,
            self._settings.source.slot,
            summary,
            steps,
            f"headrace {act}",
            # The facts behind the plan: if they differ when it is confirmed, it is refused.
            [now.paused, now.at],
            do,
        )
        return await self._plans.handle(request, body, intent)

    async def request_snapshot(self, request: web.Request) -> web.Response:
        body = await body_of(request, "token", "columns", "filter", *STEP)
        token = _token(body)
        self._check_filter(caller_of(request), token, body.get("filter"))
        wanted: dict[str, Any] = {"values": "typed"}
        wanted.update({key: body[key] for key in ("columns", "filter") if key in body})
        payload = json.dumps(wanted).encode()
        try:
            # As the responder reads it: a plan must not be for a request that is refused later.
            parse_request(snapshot_request_subject(token), payload)
        except RequestError as error:
            raise invalid(describe(error), str(error.remedy)) from error
        rows, size = await self._tables.estimate(token)
        version = (await self._tables.one(token))["table"]["schema_version"]

        async def do() -> tuple[str | None, str]:
            found = await self._asked(token, payload)
            return str(found["snapshot_id"]), f"The request was {found['status']}."

        facts = {}
        about = "a number of rows that is not known"
        if rows is not None:
            facts["rows"] = str(rows)
            about = f"about {rows} rows"
        if size is not None:
            facts["bytes"] = str(size)
        intent = Intent(
            "snapshot",
            token,
            f"A snapshot of {_name(token)} copies {about}.",
            [
                "PostgreSQL exports a snapshot at an exact LSN; no writer waits.",
                f"Spark copies the rows into the stream {self._settings.streams.init}.",
                "Everyone who reads the table's snapshots gets this one.",
            ],
            _snapshot_command(token, wanted),
            # A table whose columns have changed since the plan has other rows to copy.
            [token, version],
            do,
            facts,
        )
        return await self._plans.handle(request, body, intent)

    def _check_filter(self, caller: Caller, token: str, conditions: Any) -> None:
        """Raise if the caller may not compare these columns: the number of rows would answer."""
        try:
            wanted = {condition.column for condition in parse_conditions(conditions)}
        except RequestError as error:
            raise invalid(describe(error), str(error.remedy)) from error
        names = split_table_token(token)
        if not wanted or (caller.sees(*names) and not wanted & self._redaction.columns(*names)):
            return
        raise ProblemError(
            403,
            "values",
            "Only those who see the values of a table may choose its rows by them.",
            f"Ask for the right `values` on {'.'.join(names)}, or leave the filter out.",
        )

    async def _asked(self, token: str, payload: bytes) -> dict[str, Any]:
        """The responder's answer to a request."""
        # The answer may come from any instance, after the request has waited in its queue.
        client = self._reader.client
        inbox = client.new_inbox()
        came: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        async def heard(message: Msg) -> None:
            # The server itself answers, because nobody subscribes to the request's subject.
            if (message.headers or {}).get("Status"):
                body: dict[str, Any] = {"status": "unanswered"}
            else:
                body = decode(message.data)
            # An interrupted snapshot that starts again answers once more.
            if "status" in body and not came.done():
                came.set_result(body)

        # An inbox in a header, as the contract asks for: JetStream answers on the reply subject.
        subscription = await client.subscribe(inbox, cb=heard)
        try:
            await client.publish(
                snapshot_request_subject(token),
                payload,
                reply=inbox,
                headers={REPLY_HEADER: inbox},
            )
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                found = await came
        except TimeoutError as error:
            raise unavailable(
                "The snapshot-responder did not answer; the request is queued for it."
            ) from error
        finally:
            await subscription.unsubscribe()
        if found["status"] == "unanswered":
            raise unavailable("No snapshot-responder answers.")
        if found["status"] == "rejected":
            raise ProblemError(
                409, "invalid", f"The request was rejected: {found.get('reason')}", "Correct it."
            )
        return found

    async def cancel_snapshot(self, request: web.Request) -> web.Response:
        body = await body_of(request, "token", *STEP)
        token = _token(body)
        name = request.match_info["id"]

        async def do() -> tuple[str | None, str]:
            # By its ID: a later snapshot of the table is not meant.
            payload = json.dumps({"snapshot_id": name}).encode()
            try:
                message = await self._reader.client.request(
                    snapshot_cancel_subject(token), payload, timeout=ANSWER_TIMEOUT_S
                )
            except NoRespondersError as error:
                raise unavailable("No snapshot-responder answers.") from error
            cancelled = decode(message.data)["cancelled"]
            if not cancelled:
                return name, "It was not running any more."
            return name, "It is cancelled, and sends nothing more."

        intent = Intent(
            "cancel-snapshot",
            name,
            f"The snapshot {name} of {_name(token)} ends with an error.",
            [
                "Everyone who requested it gets the error.",
                "Its chunks are removed from the stream.",
            ],
            f"headrace snapshot {shlex.quote(_name(token))} --cancel",
            [name],
            do,
        )
        return await self._plans.handle(request, body, intent)


def _token(body: dict[str, Any]) -> str:
    token = body.get("token")
    # It becomes part of a subject.
    if not isinstance(token, str) or not token or set(token) & set(" .*>\t\r\n"):
        raise invalid("token is missing, or no table's token")
    return token


def _name(token: str) -> str:
    schema, table = split_table_token(token)
    if schema == "public":
        return table
    return f"{schema}.{table}"


def _snapshot_command(token: str, wanted: dict[str, Any]) -> str:
    words = ["headrace", "snapshot", _name(token)]
    if "columns" in wanted:
        words += ["--columns", ",".join(wanted["columns"])]
    if "filter" in wanted:
        words += ["--filter", json.dumps(wanted["filter"])]
    return shlex.join(words)
