"""The checks of `headrace doctor` on the sinks: the file, each target, each position.

Writes to no target and opens no sink: opening one would end its process. Of a target it is checked
only that its address can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamState
from nats.js.errors import NotFoundError

from headrace.cli.doctor.checks import Findings
from headrace.cli.doctor.folders import judge_folder
from headrace.cli.session import nats
from headrace.errors import HeadraceError
from headrace.jetstream.state import bucket
from headrace.settings import Settings
from headrace.sinks.configuration import SinkConfiguration, load_sinks
from headrace.sinks.configuration_keys import Initial
from headrace.sinks.control import Control, control_key, durable_name
from headrace.sinks.dead_letters import DeadLetters
from headrace.terminal.text import counted

GROUP = "Sinks"
_FILE = "HEADRACE_CONFIG"
_TIMEOUT_S = 5.0
# The ports of targets whose address has none.
_PORTS = {
    "kafka": 9092,
    "valkey": 6379,
    "redis": 6379,
    "rabbitmq": 5672,
    "rabbitmq-stream": 5552,
    "opensearch": 9200,
    "elasticsearch": 9200,
    "http": 80,
    "https": 443,
}


async def examine(settings: Settings) -> Findings:
    findings = Findings(GROUP, [])
    file = Path(settings.sinks.file)
    # Most suites have no sinks: only a file that is named must exist.
    if _FILE not in os.environ and not await asyncio.to_thread(file.exists):
        return findings
    try:
        sinks = await asyncio.to_thread(load_sinks, file, os.environ)
    except HeadraceError as error:
        findings.fail("file", str(error.args[0]), error.remedy or "Correct the file.")
        return findings
    findings.ok("file", f"{file}: {counted(len(sinks), 'sink')}")
    for sink in sinks.values():
        await _target(sink, findings)
    try:
        await _positions(settings, list(sinks.values()), findings)
    except (HeadraceError, NatsError, TimeoutError):
        # The group NATS reports it.
        findings.warn("positions", "can't be checked", "Fix NATS first.")
    return findings


async def _target(sink: SinkConfiguration, findings: Findings) -> None:
    """Whether what the sink's process needs is here, and its target can be reached."""
    name = f"{sink.name}: target"
    try:
        sink.secrets(os.environ)
        address = sink.address(os.environ)
    except HeadraceError as error:
        # A warning: the environment of this command may not be the process's.
        remedy = "Set it here as for the sink's process, and run this again."
        findings.warn(name, f"can't be checked: {error.args[0]}", remedy)
        return
    scheme = urlsplit(address).scheme
    if scheme == "file":
        _folder(name, address, findings)
    elif scheme in {"s3", "gs", "az"}:
        await asyncio.to_thread(_bucket, name, address, findings)
    elif scheme in _PORTS:
        await _reached(name, address, findings)
    else:
        findings.ok(name, "a class of your own: not checked")


def _folder(name: str, address: str, findings: Findings) -> None:
    folder = Path(unquote(urlsplit(address).path))
    judge_folder(findings, name, folder, "Let the user of the sink write there, or change `to`.")


def _bucket(name: str, address: str, findings: Findings) -> None:
    try:
        from headrace.archive.store import Names, Store  # an extra

        # After all names that a sink gives: a listing of the whole bucket could take minutes.
        Store(address, timeout_s=_TIMEOUT_S).ask(Names(after="~"))
    except ModuleNotFoundError as error:
        findings.unread(name, str(error.name), "archive")
    except HeadraceError as error:
        findings.fail(name, str(error.args[0]), "Check the address, its credentials, the network.")
    else:
        findings.ok(name, f"{address} can be listed")


async def _reached(name: str, address: str, findings: Findings) -> None:
    """Whether one of the target's hosts accepts a connection."""
    parts = urlsplit(address)
    # Without the user and the password.
    hosts = parts.netloc.rpartition("@")[2].split(",")
    reasons = []
    for host in hosts:
        one = urlsplit(f"//{host}")
        port = one.port or _PORTS[parts.scheme]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                _, writer = await asyncio.open_connection(one.hostname, port)
        except TimeoutError:
            reasons.append(f"{one.hostname}:{port} does not answer")
        except OSError as error:
            reasons.append(f"{one.hostname}:{port}: {error.strerror or error}")
        else:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            # One is enough for a client to find the others.
            findings.ok(name, f"{one.hostname}:{port} accepts connections")
            return
    findings.fail(name, "; ".join(reasons), "Check the address, the target and the network.")


async def _positions(
    settings: Settings, sinks: list[SinkConfiguration], findings: Findings
) -> None:
    source = settings.source.slot
    async with nats(settings, "doctor") as (client, _):
        js = client.jetstream()
        state = await bucket(js, settings.streams.state)
        stream = (await js.stream_info(settings.streams.cdc)).state
        parked = await DeadLetters(js, settings.streams.parked, source).names()
        for sink in sinks:
            control = await Control(state, control_key(source, sink.name)).read()
            if control.paused:
                reason = control.reason or "by an operator"
                remedy = f"headrace sinks resume {sink.name}"
                findings.warn(f"{sink.name}: paused", reason, remedy)
            await _position(js, settings, sink, stream, findings)
            _letters(sink.name, sum(owner == sink.name for owner, _ in parked), findings)


async def _position(
    js: JetStreamContext,
    settings: Settings,
    sink: SinkConfiguration,
    stream: StreamState,
    findings: Findings,
) -> None:
    """Whether the stream still has the event with which the sink continues."""
    name = f"{sink.name}: position"
    try:
        durable = durable_name(settings.source.slot, sink.name)
        consumer = await js.consumer_info(settings.streams.cdc, durable)
    except NotFoundError:
        findings.warn(name, "it has never run", f"Start `headrace sink {sink.name}`.")
        return
    behind = int(consumer.num_pending or 0) + int(consumer.num_ack_pending or 0)
    found = f"{counted(behind, 'message')} behind the stream"
    # A consumer acknowledges what its sink has committed. Its place stays there when the stream's
    # limits discard messages after it; only a purge by hand moves it.
    done = 0
    if consumer.ack_floor is not None:
        done = consumer.ack_floor.stream_seq
    # A new sink begins with the stream's first message, whichever that is.
    if not done or done + 1 >= stream.first_seq:
        findings.ok(name, found)
        return
    lost = f"{found}, which has lost {stream.first_seq - done - 1:,} messages after its position"
    if settings.archive.url:
        findings.warn(name, f"{lost}; the archive has them", _start(sink.name))
    elif sink.snapshot is Initial.INITIAL:
        findings.warn(name, f"{lost}; it will copy its tables again", _start(sink.name))
    else:
        remedy = f"Run `headrace sinks reset {sink.name} --to snapshot`, or accept it: --to start."
        findings.fail(name, lost, remedy)


def _start(sink: str) -> str:
    return f"Let it run (`headrace sink {sink}`), and raise the stream's retention."


def _letters(sink: str, parked: int, findings: Findings) -> None:
    name = f"{sink}: parked"
    if parked:
        remedy = f"headrace dead-letters ls {sink}; then replay or drop them"
        findings.warn(name, f"{counted(parked, 'record')} that the target refused", remedy)
    else:
        findings.ok(name, "no records")
