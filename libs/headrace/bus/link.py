"""The bus on NATS core: its subjects, and what every service does on it besides frames.

Subjects, all internal: `headrace.{slot}.frames` (wal-reader to confirmers),
`headrace.{slot}.control` (back), `headrace.{slot}.stats.{service}` (figures, to telemetry),
`headrace.{slot}.stop` (an ordered stop of the suite), `headrace.{slot}.pause` (to the publisher:
read again whether it is paused), `headrace.{slot}.doctor` (a message to itself, to prove the
right). Others are defined where they are used: `headrace.{stream}.turns` among publishers
(`headrace.jetstream.publishing.turns`), `headrace.{slot}.snapshot.{snapshot_id}` between a snapshot's tasks
and its responder (`headrace.snapshot_responder.chunk_permits`), `headrace.mirror.{identity}.hold` to a
mirror (`headrace.mirror.verify_hold`).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgpack
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.bus import signed
from headrace.errors import DecodeError, HeadraceError
from headrace.metrics.counting import Stats
from headrace.process.lifecycle import Scope
from headrace.process.tracing import Span, unpacked

log = logs.logger("bus")


class BusClosedError(HeadraceError):
    """The NATS connection is closed for good."""

    remedy = "Look above for the reason, which NATS usually gives as refused credentials; then restart the service."


def frames_subject(slot: str) -> str:
    return f"headrace.{slot}.frames"


def control_subject(slot: str) -> str:
    return f"headrace.{slot}.control"


def stats_subject(slot: str, service: str) -> str:
    return f"headrace.{slot}.stats.{service}"


def stop_subject(slot: str) -> str:
    return f"headrace.{slot}.stop"


def pause_subject(slot: str) -> str:
    return f"headrace.{slot}.pause"


def stop_command(slot: str, token: str | None) -> bytes:
    """What every service obeys on the stop subject."""
    return signed.command(token, "stop", slot, time.time())


@dataclass(frozen=True, slots=True)
class Report:
    """What one process says of itself; `instance` tells a standby from the one that works."""

    stats: Stats
    reasons: dict[str, str]
    instance: str
    spans: tuple[Span, ...] = ()


_INSTANCE = secrets.token_hex(4)


def doctor_subject(slot: str) -> str:
    return f"headrace.{slot}.doctor"


def encode_stats(stats: Stats, reasons: dict[str, str], spans: Sequence[Span] = ()) -> bytes:
    body = {"stats": stats, "reasons": reasons, "instance": _INSTANCE}
    return bytes(
        msgpack.packb({**body, "spans": [span.packed() for span in spans]} if spans else body)
    )


def decode_stats(data: bytes) -> Report:
    try:
        body = msgpack.unpackb(data)
        return Report(
            dict(body["stats"]),
            dict(body["reasons"]),
            str(body["instance"]),
            unpacked(body.get("spans", ())),
        )
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise DecodeError(f"a malformed report: {error}") from error


async def take_part(scope: Scope, client: Client, slot: str) -> None:
    """What every service does: report its figures, and stop when the suite is told to."""

    async def stop(message: Msg) -> None:
        if not signed.is_obeyed(
            scope.process.shutdown_token, "stop", slot, message.data, time.time()
        ):
            log.warning(
                "stop_refused", reason="not a command of now, signed with HEADRACE_SHUTDOWN_TOKEN"
            )
            return
        log.info("stop_requested", by="the bus")
        scope.stopping.set()

    await client.subscribe(stop_subject(slot), cb=stop)
    while True:
        stats = scope.health.refreshed()
        stats["nats_connected"] = int(client.is_connected)
        if client.is_connected:
            report = encode_stats(stats, scope.health.reasons, scope.health.traces.taken())
            with contextlib.suppress(NatsError):
                await client.publish(stats_subject(slot, scope.service), report)
        if scope.stopping.is_set():
            return
        await scope.pause(scope.process.stats_interval_s)
