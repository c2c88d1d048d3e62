"""Answers about the installation: settings, the doctor's findings, gaps, parked changes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any

import msgpack
import orjson
from aiohttp import web
from nats.js.errors import NotFoundError

from headrace.audit.settings import load_audit
from headrace.console.cells import Redaction
from headrace.console.command import output_of
from headrace.console.json_answers import answer, caller_of
from headrace.console.last_known import FAILURES, stamp
from headrace.console.newest import Newest
from headrace.console.problem import unavailable
from headrace.console.reading import EventReader
from headrace.console.reasons import HIDDEN, may_read_reasons
from headrace.console.suite_view import SuiteView
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import CDC
from headrace.jetstream.object_store import ObjectStore
from headrace.settings import Settings

GAPS_MAX = 200
PARKED_MAX = 100
DOCTOR_S = 30.0
_LEVELS = {"ok": "ok", "warn": "warning", "fail": "failed"}
_GAP = f"{CDC}._gap"


class System:
    def __init__(
        self, settings: Settings, reader: EventReader, suite: SuiteView, redaction: Redaction
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._suite = suite
        self._redaction = redaction
        self._gaps = Newest(reader, settings.streams.cdc, _GAP, GAPS_MAX)
        self._doctor_turn = asyncio.Lock()
        self._findings: tuple[float, list[dict[str, Any]]] | None = None

    async def settings(self, _: web.Request) -> web.Response:
        groups = [
            (field.name, getattr(self._settings, field.name))
            for field in dataclasses.fields(self._settings)
        ]
        # Its settings have a separate loader, since most processes don't need them.
        groups.append(("audit", load_audit(os.environ)))
        items = [
            _setting(name, field, getattr(group, field.name), os.environ)
            for name, group in groups
            for field in dataclasses.fields(group)
        ]
        return self._list(items)

    async def doctor(self, request: web.Request) -> web.Response:
        # One at a time, and its findings for a while: it opens further connections.
        async with self._doctor_turn:
            kept = self._findings
            if kept is None or time.monotonic() - kept[0] > DOCTOR_S:
                kept = (time.monotonic(), await _findings())
                self._findings = kept
        if may_read_reasons(caller_of(request), self._redaction):
            return self._list(kept[1])
        # A sink that its target has disabled is paused with the target's words.
        return self._list(
            [
                {**one, "text": HIDDEN} if one["part"].endswith(": paused") else one
                for one in kept[1]
            ]
        )

    def _list(self, items: list[dict[str, Any]]) -> web.Response:
        return answer({**self._suite.head(), "items": items})

    async def gaps(self, _: web.Request) -> web.Response:
        found: list[dict[str, Any]] = []
        for message in await self._gaps.read():
            seq = int(message.seq or 0)
            events = await self._reader.decoded(message.data or b"", _GAP, seq)
            found += [_gap(event.payload, seq, message.time) for event in events]
        return self._list(list(reversed(found)))

    async def parked(self, request: web.Request) -> web.Response:
        """Parked changes of this source. Reasons may quote bytes, so they take the right to all."""
        sees = may_read_reasons(caller_of(request), self._redaction)
        bucket = self._settings.streams.parked
        js = self._reader.client.jetstream()
        try:
            # NATS's names for the stream of an object store, and for the subjects of its entries.
            info = await js.stream_info(f"OBJ_{bucket}", subjects_filter=f"$O.{bucket}.M.>")
        except NotFoundError:
            return self._list([])
        # The names of objects are subjects in base64, which needs no consumer to list.
        store = ObjectStore(js, bucket)
        named = {
            urlsafe_b64decode(subject.rpartition(".")[2] + "==").decode(): subject
            for subject in info.state.subjects or {}
        }
        # The bucket also has the records that sinks parked, which may be many more.
        own = [name for name in named if name.startswith(f"{self._settings.source.slot}-")]
        found = []
        for name in own[:PARKED_MAX]:
            meta = decode((await js.get_last_msg(f"OBJ_{bucket}", named[name])).data or b"{}")
            reason = None
            if sees:
                reason = await _reason(store, name)
            found.append(_parked(name, meta, reason))
        return self._list(found)


def _setting(
    group: str, field: dataclasses.Field[Any], value: object, environ: Mapping[str, str]
) -> dict[str, Any]:
    env = field.metadata["env"]
    # A URL may contain a password: such settings are kept out of every text.
    secret = bool(field.metadata["secret"]) or not field.repr
    origin = "default"
    if env in environ:
        origin = "environment"
    elif secret and f"{env}_FILE" in environ:
        origin = "file"
    return {
        "name": env,
        "group": group,
        "value": None if secret else _text(value),
        "default": _text(field.default),
        "origin": origin,
        "secret": secret,
        "text": field.metadata["help"],
    }


def _text(value: object) -> str | None:
    if value is None or value is dataclasses.MISSING:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(str(one) for one in value)
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)


async def _findings() -> list[dict[str, Any]]:
    _, out, err = await output_of("doctor", "--json")
    try:
        checks = orjson.loads(out)["checks"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise unavailable(f"headrace doctor failed: {err.strip()[-200:]}") from error
    return [
        {
            "part": f"{check['group']}: {check['name']}",
            "level": _LEVELS[check["state"]],
            "text": check["found"],
            "remedy": check["remedy"] or None,
        }
        for check in checks
    ]


def _gap(payload: Mapping[str, Any], seq: int, at: datetime | None) -> dict[str, Any]:
    return {
        "id": str(payload["msg_id"]),
        "after": str(payload["after"]),
        "up_to": str(payload["up_to"]),
        "reason": str(payload["reason"]),
        "sequence": str(seq),
        "at": None if at is None else stamp(at.timestamp()),
        "text": (
            f"Changes that committed from {payload['after']} to before {payload['up_to']} may be "
            "missing. Copy the tables again."
        ),
    }


async def _reason(store: ObjectStore, name: str) -> str | None:
    try:
        body = msgpack.unpackb(await store.get(name))
        return str(body["reason"])
    except (*FAILURES, ValueError, KeyError, TypeError):
        # Removed since, or not written by the suite.
        return None


def _parked(name: str, meta: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
    _, lsn, ordinal = name.rsplit("-", 2)
    return {
        "id": name,
        "at": meta.get("mtime"),
        "bytes": str(int(meta.get("size", 0))),
        "reason": reason,
        "facts": {"lsn": lsn, "ordinal": ordinal},
    }
