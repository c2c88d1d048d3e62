"""The backups: how far the physical log is stored, what can be restored, and the command for it.

Reads only: a restore takes a folder on another machine's disk, or changes a database, so it is a
command. The plan that is shown is the command's own.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web

from headrace.console.access import Caller
from headrace.console.command import TIMEOUT_S, output_of
from headrace.console.json_answers import answer, caller_of
from headrace.console.last_known import LastKnown, stamp
from headrace.console.positions import lsn_in
from headrace.console.problem import invalid, not_found, unavailable
from headrace.console.suite_view import SuiteView
from headrace.console.waterline import STATES
from headrace.lsn import format_lsn, parse_lsn
from headrace.settings import Settings

FRESH_S = 15.0
_TABLE = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_XID = re.compile(r"[0-9]{1,10}")
# Which moments a restore can name, with the option of `headrace restore`.
_MOMENTS = {"latest": "", "time": "--at", "lsn": "--lsn", "before-xid": "--before-xid"}
_DROP = "before-drop"
Document = dict[str, Any]


class BackupAnswers:
    def __init__(self, settings: Settings, suite: SuiteView) -> None:
        self._settings = settings
        self._suite = suite
        self._stored: LastKnown[Document] = LastKnown(
            "backups", self._read_stored, FRESH_S, TIMEOUT_S
        )
        self._dropped: LastKnown[list[Document]] = LastKnown(
            "backups", self._read_dropped, FRESH_S, TIMEOUT_S
        )
        # A plan lists the whole store.
        self._turns = asyncio.Semaphore(2)

    async def page(self, request: web.Request) -> web.Response:
        """The store, its backups and the window that can be restored."""
        self._check()
        # Before the first reading there is nothing to show, and the reason is in `stale`.
        stored = await self._stored.current() or _NOTHING
        return answer(
            {
                **self._head(self._stored),
                "store": self._settings.backup.url,
                "writer": self._writer(caller_of(request)),
                **stored,
            }
        )

    async def drops(self, _: web.Request) -> web.Response:
        """Dropped tables that can be brought back."""
        self._check()
        items = await self._dropped.current() or []
        return answer({**self._head(self._dropped), "items": items})

    async def plan(self, request: web.Request) -> web.Response:
        """The plan of a restore, and its command."""
        self._check()
        arguments = restore_arguments(request.query)
        async with self._turns:
            code, _, err = await output_of("restore", *arguments, "--plan")
        lines = [line for line in err.splitlines() if line.strip()]
        problem = None
        if code:
            problem = " ".join(lines).removeprefix("headrace: ")[-500:]
            lines = []
        command = shlex.join(["headrace", "restore", *arguments])
        head = self._suite.head()
        return answer({**head, "command": command, "lines": lines, "problem": problem})

    def _check(self) -> None:
        if not self._settings.backup.url:
            raise not_found(
                "There are no backups: HEADRACE_BACKUP_URL is not set.",
                "Set it to a folder (file:///…) or a bucket (s3://…), see docs/backup.md.",
            )

    def _head(self, known: LastKnown[Any]) -> Document:
        head = self._suite.head()
        return {**head, "stale": [*head["stale"], *known.stale()]}

    def _writer(self, caller: Caller) -> Document | None:
        """The wal-archiver's own figures; None if it does not report."""
        service = ((self._suite.status_for(caller) or {}).get("services") or {}).get("wal-archiver")
        if service is None:
            return None
        figures = service["figures"]
        lsn = figures.get("backup_stored_lsn")
        unstored = figures.get("backup_unstored_bytes")
        return {
            "state": STATES[service["state"]],
            "reasons": [str(reason) for reason in service["reasons"].values()],
            "stored_lsn": format_lsn(int(lsn)) if lsn else None,
            "unstored_bytes": None if unstored is None else str(int(unstored)),
            "lag_s": figures.get("backup_lag_seconds"),
        }

    async def _read_stored(self) -> Document:
        status, listed = await asyncio.gather(_found("backup", "status"), _found("backup", "ls"))
        backups = [_backup(one) for one in listed]
        return {
            "window": window_of(status, listed),
            "log_until": status["log_until"],
            "timeline": status["timeline"],
            "holes": status["holes"],
            "unfinished": status["unfinished_backups"],
            "standbys": [_standby(one) for one in status["standbys"]],
            "last_drill": _drill(status["last_drill"]),
            "stored_bytes": str(status["stored_bytes"]),
            # The newest first, as on every page.
            "items": list(reversed(backups)),
        }

    async def _read_dropped(self) -> list[Document]:
        return [
            {"table": one["table"], "xid": str(one["xid"]), "at": _time(one["time"])}
            for one in await _found("backup", "drops")
        ]


_NOTHING: Document = {
    "window": None,
    "log_until": None,
    "timeline": None,
    "holes": [],
    "unfinished": [],
    "standbys": [],
    "last_drill": None,
    "stored_bytes": None,
    "items": [],
}


async def _found(*words: str) -> Any:
    """The output of a command for programs."""
    code, out, err = await output_of(*words, "--json")
    if code:
        raise unavailable(err.strip().removeprefix("headrace: ")[-300:])
    return orjson.loads(out)


def window_of(status: Mapping[str, Any], listed: Sequence[Mapping[str, Any]]) -> Document | None:
    """From the oldest backup whose log reaches the end, to the moment that is stored. `listed`: the
    backups, the oldest first.
    """
    restorable = [one for one in listed if one["restorable"]]
    if not restorable:
        return None
    # Of the same list: the log grows between two readings of the store.
    ends = restorable[-1]["log_until"]
    # The moment that is stored lies beyond the hole, and no backup reaches it.
    if any(parse_lsn(hole["from"]) >= parse_lsn(ends) for hole in status["holes"]):
        return None
    # A hole in the log ends a window: backups before it reach only as far as the hole.
    first = next(one for one in restorable if one["log_until"] == ends)
    return {
        "from": _time(first["time"]),
        "from_lsn": first["lsn"],
        "to": _time(status["time"]),
        "to_lsn": ends,
    }


def _backup(one: Mapping[str, Any]) -> Document:
    return {
        "label": one["label"],
        "kind": one["kind"],
        "parent": one["parent"],
        "at": _time(one["time"]),
        "timeline": one["timeline"],
        "lsn": one["lsn"],
        "log_until": one["log_until"],
        "bytes": str(one["bytes"]),
        "stored": str(one["stored"]),
        "tags": one["tags"],
        "restorable": one["restorable"],
    }


def _standby(one: Mapping[str, Any]) -> Document:
    return {
        "name": one["name"],
        "from": one["from"],
        "lsn": one["lsn"],
        "lag_s": one["lag_s"],
        "at": _time(one["noted"]),
    }


def _drill(text: str | None) -> Document | None:
    """`passed at TIME` as an object."""
    if text is None:
        return None
    word, _, at = text.partition(" at ")
    return {"passed": word == "passed", "at": _time(at)}


def _time(text: str | None) -> str | None:
    if text is None:
        return None
    return stamp(datetime.fromisoformat(text).timestamp())


def restore_arguments(query: Mapping[str, str]) -> list[str]:
    """The options of `headrace restore`. Each value is joined to its option, so that none can be
    taken for another option.
    """
    moment, value = query.get("moment", "latest"), query.get("value", "")
    what = query.get("what", "cluster")
    if what == "cluster":
        if moment == _DROP:
            raise invalid("before-drop is a moment of a table", "Choose a table.")
        arguments = [f"--to={_path(query.get('to', ''))}"]
    elif what == "table":
        table = query.get("table", "")
        if not _TABLE.fullmatch(table):
            raise invalid("the table is missing", "Write orders, or app.orders.")
        arguments = [f"--table={table}"]
    else:
        raise invalid("what is cluster or table")
    if moment == _DROP:
        return [*arguments, "--before-drop"]
    if moment not in _MOMENTS:
        raise invalid(f"moment is one of {', '.join([*_MOMENTS, _DROP])}")
    if moment == "latest":
        return arguments
    return [*arguments, f"{_MOMENTS[moment]}={_value(moment, value)}"]


def _path(text: str) -> str:
    # Relative to what would be the console's own folder.
    if not text.startswith("/") or "\x00" in text or len(text) > 1000:
        raise invalid("`to` is not an absolute path", "Name a new folder, such as /srv/restored.")
    return text


def _value(moment: str, text: str) -> str:
    if moment == "lsn":
        return format_lsn(lsn_in(text))
    if moment == "before-xid":
        if not _XID.fullmatch(text):
            raise invalid("the transaction is not a number")
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid("the time is malformed", "Write 2026-01-31T12:00:00Z.") from error
    # Without a zone, an hour of daylight saving would be two moments.
    if at.tzinfo is None:
        raise invalid("the time has no zone", "Write 2026-01-31T12:00:00Z.")
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
