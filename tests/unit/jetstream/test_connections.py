"""Errors of a failed connection, and the beginning and end of a service's connection."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from nats.errors import Error as NatsError
from nats.errors import NoServersError

from headrace.errors import HeadraceError
from headrace.jetstream import connection, provisioning
from headrace.jetstream.connection import (
    NatsRefusedError,
    NatsTlsError,
    NatsUnreachableError,
    connect_once,
    connected,
)
from headrace.jetstream.errors import NoRoomError
from headrace.jetstream.provisioning import ensure_patiently
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import load
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({})


def scope() -> Scope:
    return Scope("publisher", SETTINGS.process, asyncio.TaskGroup(), Health("publisher"))


@pytest.mark.parametrize(
    ("reported", "kind"),
    [
        (ssl.SSLError("certificate verify failed"), NatsTlsError),
        (NatsError("nats: TLS is required"), NatsTlsError),
        (NatsError("Authorization Violation"), NatsRefusedError),
        (OSError("connection refused"), NatsUnreachableError),
    ],
)
async def test_a_failed_connection_is_reported_by_its_cause(
    reported: Exception, kind: type[HeadraceError]
) -> None:
    """nats-py tells its callback the cause, and raises only that no server is available."""

    async def fails(_: object, options: dict[str, Any]) -> Any:
        assert not options["allow_reconnect"], "the first attempt ends"
        await options["error_cb"](reported)
        raise NoServersError

    with mock.patch.object(connection, "_connect", fails), pytest.raises(kind):
        await connect_once(SETTINGS.nats, "test")


async def test_a_services_connection_ends_with_it() -> None:
    client = mock.AsyncMock()
    with mock.patch.object(connection, "_first_connection", return_value=client):
        async with connected(scope(), SETTINGS.nats) as given:
            assert given is client
            client.close.assert_not_awaited()
        client.close.assert_awaited_once()


@on_virtual_time
async def test_a_server_that_is_away_is_asked_again_after_pauses() -> None:
    one = scope()
    asked: list[float] = []
    found = SimpleNamespace(connected_server_version=SimpleNamespace(major=2, minor=1, patch=0))

    async def connect(*_: object, **__: object) -> Any:
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise NatsUnreachableError("away")
        assert "nats" in one.health.reasons
        return found

    with mock.patch.object(connection, "connect_once", connect):
        client = await connection._first_connection(one, SETTINGS.nats, asyncio.Event())
    assert client is cast("Any", found)
    assert all(later - before > 0.05 for before, later in itertools.pairwise(asked))
    assert "nats" not in one.health.reasons


@on_virtual_time
async def test_a_stream_that_has_room_again_holds_nothing_up() -> None:
    one = scope()
    one.health.started()
    reasons: list[list[str]] = []
    answers = [NoRoomError("no room"), NoRoomError("no room"), None]

    async def ensure(*_: object) -> None:
        reasons.append(list(one.health.reasons))
        if (error := answers[len(reasons) - 1]) is not None:
            raise error

    with mock.patch.object(provisioning, "ensure", ensure):
        await ensure_patiently(one, cast("Any", None), SETTINGS.streams)
    assert reasons == [[], ["stream"], ["stream"]]
    assert list(one.health.reasons) == []
