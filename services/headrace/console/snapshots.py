"""Running snapshots, by their progress on the bus, and those that the stream still has."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg

from headrace.console.access import Caller
from headrace.console.cells import Redaction
from headrace.console.json_answers import answer, caller_of
from headrace.console.last_known import LastKnown, stamp
from headrace.console.newest import Newest
from headrace.console.reading import EventReader
from headrace.console.reasons import HIDDEN
from headrace.console.suite_view import SuiteView
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import (
    meta_subject,
    snapshot_error_subject,
    snapshot_progress_subject,
    split_table_token,
)
from headrace.errors import DecodeError
from headrace.settings import Settings

KEPT_MAX = 200
STORED_S = 2.0
# A busy responder may miss some of its reports.
SILENT_REPORTS = 5
SILENT_S_MIN = 5.0
# By then another responder has taken the request, or nobody will.
FORGOTTEN_S = 600.0
NO_PROGRESS = "no progress is reported; another snapshot-responder takes the request"
Document = dict[str, Any]


@dataclass(slots=True)
class SnapshotReport:
    """A running snapshot: its last report, the time of the first one, and when the last came."""

    document: Document
    began: float
    heard: float


class SnapshotList:
    def __init__(
        self, settings: Settings, reader: EventReader, suite: SuiteView, redaction: Redaction
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._suite = suite
        self._redaction = redaction
        self._running: dict[str, SnapshotReport] = {}
        self._silent_s = max(SILENT_S_MIN, SILENT_REPORTS * settings.snapshot.progress_interval_s)
        self._ends = [
            (self._newest(meta_subject(">")), _complete),
            (self._newest(snapshot_error_subject(">")), _failed),
        ]
        self._stored: LastKnown[list[Document]] = LastKnown("snapshots", self._read, STORED_S)

    async def connect(self, client: Client) -> None:
        """Listen to the progress of snapshots."""
        await client.subscribe(snapshot_progress_subject("*"), cb=self._progressed)

    async def _progressed(self, message: Msg) -> None:
        try:
            body = decode(message.data)
            document = _running(body, message.subject.rpartition(".")[2])
        except (DecodeError, KeyError, TypeError, ValueError):
            # Any client may publish there.
            return
        # A report has no time of its beginning, so it is the first one that was heard.
        known = self._running.get(document["id"])
        began = time.time() if known is None else known.began
        self._running[document["id"]] = SnapshotReport(document, began, time.monotonic())
        # Any client may publish progress: the oldest go.
        while len(self._running) > KEPT_MAX:
            del self._running[next(iter(self._running))]

    async def page(self, request: web.Request) -> web.Response:
        return answer(await self.document_for(caller_of(request)))

    async def document_for(self, caller: Caller) -> Mapping[str, Any]:
        """Running ones first, then the others, the latest first."""
        stored = await self._stored.current() or []
        head = self._suite.head()
        stale = {one["part"] for one in head["stale"]}
        # Without NATS nothing is heard, which says nothing about the responder.
        now = None if "nats" in stale else time.monotonic()
        # The last progress may arrive after the end was stored.
        ended = {one["id"] for one in stored}
        running = running_now(self._running.values(), ended, now, self._silent_s)
        # Without NATS the list is old for a reason that the page has already.
        if "nats" not in stale:
            head["stale"] += self._stored.stale()
        items = [self._open_to(caller, one) for one in (*running, *stored)[:KEPT_MAX]]
        return {**head, "items": items}

    def _open_to(self, caller: Caller, document: Document) -> Document:
        """The document, without a reason that may quote values that the caller doesn't see."""
        names = split_table_token(document["token"])
        if document["reason"] in (None, NO_PROGRESS) or (
            caller.sees(*names) and not self._redaction.columns(*names)
        ):
            return document
        return {**document, "reason": HIDDEN}

    def _newest(self, subject: str) -> Newest:
        return Newest(self._reader, self._settings.streams.init, subject, KEPT_MAX)

    async def _read(self) -> list[Document]:
        """The ends of snapshots in the stream."""
        found = [
            _ended(message, make) for newest, make in self._ends for message in await newest.read()
        ]
        # Two subjects, each in its order.
        found.sort(key=lambda one: one["ended"] or "", reverse=True)
        return found[:KEPT_MAX]


def running_now(
    reported: Iterable[SnapshotReport], ended: Collection[str], now: float | None, silent_s: float
) -> list[Document]:
    """The snapshots that have not ended; a report is no sign of life for long. Without `now`, the
    last reports stay: nothing can be heard.
    """
    found = []
    for progress in reported:
        silence_s = 0.0 if now is None else now - progress.heard
        if progress.document["id"] in ended or silence_s > FORGOTTEN_S:
            continue
        document = {**progress.document, "began": stamp(progress.began)}
        if silence_s > silent_s:
            document |= {"state": "attention", "phase": "waiting", "reason": NO_PROGRESS}
        found.append(document)
    return found


def _ended(message: RawStreamMsg, make: Callable[..., Document]) -> Document:
    token = (message.subject or "").rpartition(".")[2]
    return make(decode(message.data or b""), token, message.time)


def _running(body: Mapping[str, Any], token: str) -> Document:
    return {
        "id": str(body["snapshot_id"]),
        "token": token,
        "state": "running",
        "phase": "copying",
        "rows": str(int(body["rows"])),
        "rows_estimated": str(int(body["rows_estimated"])),
        "lsn": None,
        "began": None,
        "ended": None,
        "chunks": None,
        "reason": None,
    }


def _complete(body: Mapping[str, Any], token: str, at: Any) -> Document:
    return {
        "id": str(body["snapshot_id"]),
        "token": token,
        "state": "running",
        "phase": "complete",
        "rows": str(body["row_count"]),
        "rows_estimated": str(body["row_count"]),
        "lsn": str(body["lsn"]),
        "began": None,
        "ended": _time(at),
        "chunks": str(body["batch_count"]),
        "reason": None,
    }


def _failed(body: Mapping[str, Any], token: str, at: Any) -> Document:
    return {
        "id": str(body.get("snapshot_id", "")),
        "token": token,
        "state": "failed",
        "phase": "failed",
        "rows": "0",
        "rows_estimated": None,
        "lsn": None,
        "began": None,
        "ended": _time(at),
        "chunks": None,
        "reason": str(body.get("error", "")),
    }


def _time(at: Any) -> str | None:
    if at is None:
        return None
    return stamp(at.timestamp())
