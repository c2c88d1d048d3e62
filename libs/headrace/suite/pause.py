"""The pause flag: a record in the state bucket, so that a pause survives restarts.

Promises: a pause lasts until it is revoked, through restarts of services, NATS and machines. If a
token is set, a record that isn't signed with it is rejected. `publisher.pausing` implements the
pause itself.
"""

from __future__ import annotations

import contextlib
import getpass
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from nats.aio.client import Client
from nats.js.kv import KeyValue

from headrace.bus import signed, subjects
from headrace.errors import HeadraceError
from headrace.jetstream.state import Cell, ForeignStateError
from headrace.settings import Settings

REASON_CHARACTERS_MAX = 200


class PauseRefusedError(HeadraceError):
    """The pause record isn't signed with this service's token."""

    remedy = "Run headrace pause or resume with the HEADRACE_SHUTDOWN_TOKEN that the services use."


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of a suite: whether it is paused, since when, why, and on whose request."""

    paused: bool = False
    by: str = ""
    at: float = 0.0
    reason: str = ""

    @property
    def told(self) -> str:
        since = (
            datetime.fromtimestamp(self.at, UTC)
            .isoformat(timespec="seconds")
            .replace("+00:00", "Z")
        )
        why = f" ({self.reason})" if self.reason else ""
        return f"paused by {self.by} at {since}{why}; run headrace resume to continue"


def someone() -> str:
    """The user and machine that run this command."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        # In a container the user's number often has no name.
        return socket.gethostname()


async def read(bucket: KeyValue, settings: Settings) -> Pause:
    """The current pause record; raises `PauseRefusedError` if it is unsigned or malformed."""
    try:
        record = await _cell(bucket, settings).read()
        if record is None:
            return Pause()
        if record["slot"] != settings.source.slot or not signed.is_signed(
            settings.process.shutdown_token, record
        ):
            raise PauseRefusedError("the pause record isn't signed with this token")
        return Pause(
            bool(record["paused"]), str(record["by"]), float(record["at"]), str(record["reason"])
        )
    except (KeyError, TypeError, ValueError, ForeignStateError) as error:
        raise PauseRefusedError("the pause record in the state bucket is malformed") from error


async def write(client: Client, bucket: KeyValue, settings: Settings, wanted: Pause) -> None:
    """Store the record and notify the publisher."""
    cell = _cell(bucket, settings)
    # The reading provides the revision that the write replaces. A malformed record is replaced too,
    # or the suite could not be resumed.
    with contextlib.suppress(ForeignStateError):
        await cell.read()
    record = {
        "slot": settings.source.slot,
        "paused": wanted.paused,
        "by": wanted.by,
        "at": wanted.at or time.time(),
        "reason": wanted.reason[:REASON_CHARACTERS_MAX],
    }
    await cell.write(signed.signed(settings.process.shutdown_token, record))
    await client.publish(subjects.pause(settings.source.slot), b"")
    await client.flush()


def _cell(bucket: KeyValue, settings: Settings) -> Cell:
    return Cell(bucket, f"pause.{settings.source.slot}")
