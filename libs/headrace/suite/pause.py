"""The word that a suite is paused: a record in the state bucket, so that it outlives every process.

Promises: a pause holds until it is taken back, through restarts of services, NATS and machines;
with a token set, a record that was not signed with it is not obeyed. What a pause does is the
publisher's (`publisher.pausing`).
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
    """The record of a pause is not signed with our token."""

    remedy = "Run headrace pause or resume with the HEADRACE_SHUTDOWN_TOKEN that the services have."


@dataclass(frozen=True, slots=True)
class Pause:
    """Who wanted it, since when, why."""

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
        return f"paused by {self.by} at {since}{why}; headrace resume goes on"


def someone() -> str:
    """The person and machine of this command."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


async def read(bucket: KeyValue, settings: Settings) -> Pause:
    """The present word; raises `PauseRefusedError` for one that is not signed as it has to be, or
    is none.
    """
    try:
        record = await _cell(bucket, settings).read()
        if record is None:
            return Pause()
        if record["slot"] != settings.source.slot or not signed.is_signed(
            settings.process.shutdown_token, record
        ):
            raise PauseRefusedError(
                "somebody without the token wrote that the suite be paused or resumed"
            )
        return Pause(
            bool(record["paused"]), str(record["by"]), float(record["at"]), str(record["reason"])
        )
    except (KeyError, TypeError, ValueError, ForeignStateError) as error:
        raise PauseRefusedError("what stands where a pause is kept is none") from error


async def write(client: Client, bucket: KeyValue, settings: Settings, wanted: Pause) -> None:
    """Keep the word, and wake the publisher."""
    cell = _cell(bucket, settings)
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
