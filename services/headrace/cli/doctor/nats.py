"""The checks of `headrace doctor` on NATS.

Stores nothing: the permission to publish is tested with a message that JetStream must refuse (it
expects another stream), on subjects of two tokens, which no table has.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.api import RetentionPolicy, StreamConfig

from headrace.bus import subjects
from headrace.cli.doctor.checks import Findings
from headrace.cli.session import kind_and_name, nats
from headrace.errors import HeadraceError
from headrace.jetstream.connection import shown, version_of
from headrace.jetstream.provisioning import declared
from headrace.jetstream.state import Cell, bucket
from headrace.settings import Settings
from headrace.suite import pause

GROUP = "NATS"
_TIMEOUT_S = 2.0
_ATOMIC_SINCE = (2, 12)
_FAST_SINCE = (2, 14)
_NOT_FOUND = 404
# The consequence of any other retention than this.
_LOSES = {
    RetentionPolicy.LIMITS: "JetStream removes messages that a consumer may not have read",
    RetentionPolicy.WORK_QUEUE: "JetStream keeps requests that were answered",
}
_REFUSED_ON_PURPOSE = {"Nats-Expected-Stream": "headrace-doctor-expects-no-such-stream"}


async def examine(settings: Settings) -> Findings:
    findings = Findings(GROUP, [])
    try:
        async with nats(settings, "doctor") as (client, complaints):
            findings.ok(
                "connection", f"{shown(settings.nats)}, user {settings.nats.user or 'none'}"
            )
            _version(client, findings)
            # Without JetStream, each of these checks would only repeat that.
            if await _jetstream(client, complaints, findings):
                await _streams(client, settings, findings)
                await _pause(client, settings, findings)
                await _publishing(client, complaints, findings)
            await _bus(client, settings, complaints, findings)
    except HeadraceError as error:
        findings.fail("connection", str(error.args[0]), error.remedy)
    return findings


def _version(client: Client, findings: Findings) -> None:
    server = client.connected_server_version
    version = (server.major, server.minor)
    found = f"nats-server {version_of(client)}"
    payload = f"messages up to {client.max_payload // 1024} KiB"
    if version >= _FAST_SINCE:
        findings.ok("version", f"{found} (fast ingest, atomic batches; {payload})")
    elif version >= _ATOMIC_SINCE:
        findings.warn(
            "version",
            f"{found} (atomic batches; {payload})",
            "Version 2.14 or newer supports fast ingest.",
        )
    else:
        remedy = (
            "Version 2.12 or newer supports atomic batches (--delivery transaction), 2.14 fast "
            "ingest."
        )
        findings.warn("version", f"{found} (single messages; {payload})", remedy)


async def _jetstream(client: Client, complaints: Sequence[str], findings: Findings) -> bool:
    answer = await _ask(client, "$JS.API.INFO")
    if isinstance(answer, dict) and "error" not in answer:
        used = answer.get("streams", 0)
        storage = answer.get("limits", {}).get("max_storage", -1)
        if storage < 0:
            bound = "no storage limit"
        else:
            bound = f"up to {storage // (1024 * 1024)} MiB"
        findings.ok("JetStream", f"{used} streams, {bound}")
        return True
    if isinstance(answer, dict):
        findings.fail(
            "JetStream",
            str(answer["error"].get("description")),
            "Enable JetStream for this account.",
        )
    elif answer == "nobody":
        findings.fail(
            "JetStream",
            "is not enabled",
            "Start nats-server with -js, or enable it for this account.",
        )
    else:
        denied = _denied(complaints, "$JS.API") or "no answer from $JS.API"
        findings.fail(
            "JetStream",
            denied,
            "Allow the NATS user to publish to $JS.API.> and to subscribe to _INBOX.>.",
        )
    return False


async def _ask(client: Client, subject: str, headers: dict[str, str] | None = None) -> Any:
    """JetStream's answer; `nobody` without a responder, `silence` without any answer."""
    try:
        return json.loads((await client.request(subject, timeout=_TIMEOUT_S, headers=headers)).data)
    except NoRespondersError:
        return "nobody"
    except (NatsError, TimeoutError):
        return "silence"


def _denied(complaints: Sequence[str], subject: str) -> str | None:
    found = next(
        (
            text
            for text in complaints
            if "permissions violation" in text.lower() and subject in text
        ),
        None,
    )
    if found:
        return found.removeprefix("nats: ")
    return None


async def _streams(client: Client, settings: Settings, findings: Findings) -> None:
    for config in declared(settings.streams):
        before = time.time()
        answer = await _ask(client, f"$JS.API.STREAM.INFO.{config.name}")
        name = str(config.name)
        check = " ".join(kind_and_name(name))
        if not isinstance(answer, dict):
            findings.fail(check, "no answer", f"Allow the NATS user $JS.API.STREAM.INFO.{name}.")
        elif answer.get("error", {}).get("code") == _NOT_FOUND:
            findings.fail(check, "does not exist", "Run `headrace init`.")
        elif "error" in answer:
            findings.fail(check, str(answer["error"].get("description")), "Run `headrace init`.")
        else:
            _stream(check, config, answer, findings)
            if name == settings.streams.cdc:
                await _losses(client, settings, check, findings)
            if name == settings.streams.cdc and "ts" in answer:
                there = datetime.fromisoformat(answer["ts"]).timestamp()
                # The server read its clock between the request and the answer.
                findings.skew(there - (before + time.time()) / 2)


def _stream(check: str, config: StreamConfig, info: dict[str, Any], findings: Findings) -> None:
    name = config.name
    wanted = set(config.subjects or [])
    state = info["state"]
    subjects = set(info["config"].get("subjects") or [])
    found = (
        f"{', '.join(sorted(subjects))}; {state['messages']:,} messages, "
        f"{state['bytes'] / 1_048_576:,.1f} MiB"
    )
    missing = ", ".join(sorted(wanted - subjects))
    remedy = f"Add {missing}: nats stream edit {name}."
    findings.judge(check, found, remedy, good=not missing)
    retention = info["config"].get("retention")
    keeps = config.retention or RetentionPolicy.LIMITS
    if retention != keeps:
        findings.fail(
            check,
            f"retention {retention}: {_LOSES[keeps]}",
            _retention_remedy(name, keeps, retention),
        )


def _retention_remedy(name: str | None, keeps: RetentionPolicy, retention: str) -> str:
    # nats-server refuses to change a stream to or from a work queue.
    if RetentionPolicy.WORK_QUEUE in {keeps, retention}:
        return f"Delete it (nats stream rm {name}) and run `headrace init`: it begins empty."
    return f"Change it: nats stream edit {name} --retention {keeps.value}."


async def _losses(client: Client, settings: Settings, check: str, findings: Findings) -> None:
    """Whether the stream still contains what the publisher has stored in it."""
    js = client.jetstream(timeout=_TIMEOUT_S)
    try:
        state = await bucket(js, settings.streams.state)
        progress = await Cell(state, f"progress.{settings.source.slot}").read() or {}
        now = await js.stream_info(settings.streams.cdc)
    except (HeadraceError, NatsError, TimeoutError):
        # The check of the bucket says why.
        return
    # A stream of the same name that was created later has none of the publisher's messages.
    created = progress.get("stream_created", "")
    if created not in ("", str(now.created)) or now.state.last_seq < progress.get("stream_seq", 0):
        findings.fail(
            check,
            "was replaced or lost its end since the publisher wrote to it",
            "Run the publisher: it delivers what the slot still has, and reports the rest as a "
            "gap. Then bootstrap consumers again.",
        )


async def _pause(client: Client, settings: Settings, findings: Findings) -> None:
    """A paused suite looks healthy, and the slot retains WAL."""
    try:
        state = await bucket(client.jetstream(timeout=_TIMEOUT_S), settings.streams.state)
        found = await pause.read(state, settings)
    except pause.PauseRefusedError as error:
        findings.fail("pause", str(error.args[0]), error.remedy)
    except (HeadraceError, NatsError, TimeoutError):
        # The check of the bucket has said why.
        return
    else:
        if found.paused:
            findings.warn("pause", f"{found.told}; the slot retains all WAL", "headrace resume")
        else:
            findings.ok("pause", "not paused")


async def _publishing(client: Client, complaints: Sequence[str], findings: Findings) -> None:
    # Any answer proves the permission, even the one that no stream has the subject.
    lacking = [
        f"{prefix}.>"
        for prefix in ("cdc", "init")
        if await _ask(client, f"{prefix}._doctor", headers=_REFUSED_ON_PURPOSE) == "silence"
    ]
    if lacking:
        found = f"not allowed on {', '.join(lacking)}"
    else:
        found = "allowed on cdc.> and init.>"
    remedy = f"Allow the NATS user to publish to {', '.join(lacking)}."
    findings.judge("publishing", _denied(complaints, "_doctor") or found, remedy, good=not lacking)


async def _bus(
    client: Client, settings: Settings, complaints: Sequence[str], findings: Findings
) -> None:
    """Send a message on the internal bus, and receive it again."""
    subject = subjects.doctor(settings.source.slot)
    back = asyncio.Event()

    async def came(_: object) -> None:
        back.set()

    # Both directions: a user may be allowed to publish and not to subscribe.
    subscription = await client.subscribe(subject, cb=came)
    try:
        await client.publish(subject, b"")
        async with asyncio.timeout(_TIMEOUT_S):
            await back.wait()
        findings.ok("bus", f"headrace.{settings.source.slot}.> works")
    except TimeoutError:
        found = _denied(complaints, subject) or "a message did not come back"
        findings.fail(
            "bus",
            found,
            f"Allow the NATS user to publish and subscribe to headrace.{settings.source.slot}.>.",
        )
    finally:
        await subscription.unsubscribe()
