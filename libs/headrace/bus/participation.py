"""Reports a service's figures on the bus, and stops it when the suite is asked to stop."""

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
from headrace.bus import signed, subjects
from headrace.errors import DecodeError, HeadraceError
from headrace.metrics.counters import Stats
from headrace.process.lifecycle import Scope
from headrace.process.tracing import Span, unpacked

log = logs.logger("bus")


class BusClosedError(HeadraceError):
    """The NATS connection was closed permanently."""

    remedy = (
        "See the log above for the reason, usually refused credentials; then restart the service."
    )


def stop_command(slot: str, token: str | None) -> bytes:
    """The command on the stop subject, which every service follows."""
    return signed.command(token, "stop", slot, time.time())


@dataclass(frozen=True, slots=True)
class Report:
    """A process's report about itself; `instance` distinguishes a standby from the active one."""

    stats: Stats
    reasons: dict[str, str]
    instance: str
    spans: tuple[Span, ...] = ()
    # The last report before an ordered stop.
    stopping: bool = False


# Random: a standby has the same name and slot, and on another machine maybe the same pid.
_INSTANCE = secrets.token_hex(4)


def encode_stats(
    stats: Stats, reasons: dict[str, str], spans: Sequence[Span] = (), *, stopping: bool = False
) -> bytes:
    body: dict[str, object] = {"stats": stats, "reasons": reasons, "instance": _INSTANCE}
    if spans:
        body["spans"] = [span.packed() for span in spans]
    if stopping:
        body["stopping"] = True
    return bytes(msgpack.packb(body))


def decode_stats(data: bytes) -> Report:
    try:
        body = msgpack.unpackb(data)
        return Report(
            dict(body["stats"]),
            dict(body["reasons"]),
            str(body["instance"]),
            unpacked(body.get("spans", ())),
            bool(body.get("stopping")),
        )
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise DecodeError(f"malformed report: {error}") from error


async def take_part(scope: Scope, client: Client, slot: str) -> None:
    """Report to telemetry, and stop when the suite is stopped. Runs in every service."""

    async def stop(message: Msg) -> None:
        if not signed.is_obeyed(
            scope.process.shutdown_token, "stop", slot, message.data, time.time()
        ):
            log.warning(
                "stop_refused",
                reason="the command is outdated or not signed with HEADRACE_SHUTDOWN_TOKEN",
            )
            return
        log.info("stop_requested", by="the bus")
        scope.stop()

    await client.subscribe(subjects.stop(slot), cb=stop)
    # Reports once more when the service stops: telemetry then shows why it is not ready.
    while True:
        scope.health.stats.set("nats_connected", int(client.is_connected))
        stats = scope.health.refreshed()
        # A client that reconnects would buffer reports, and deliver old ones together later.
        if client.is_connected:
            report = encode_stats(
                stats,
                scope.health.reasons,
                scope.health.traces.taken(),
                stopping=scope.stop_requested,
            )
            with contextlib.suppress(NatsError):
                await client.publish(subjects.stats(slot, scope.service), report)
        if scope.stopping.is_set():
            return
        await scope.pause(scope.process.stats_interval_s)
