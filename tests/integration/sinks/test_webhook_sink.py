"""A webhook, against receivers that fail, hang and lie; signatures are checked by the library of
Standard Webhooks.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from headrace.errors import SettingError
from headrace.sinks import webhook as module
from headrace.sinks.port import (
    DisabledError,
    RefusedError,
    SinkAwayError,
    SinkError,
    SinkOptions,
)
from headrace.sinks.webhook import WebhookSink
from headrace.sinks.webhook_addresses import allowed, networks
from headrace.testing.certificates import Authority
from tests.support.sink_records import event, inserts, of_events, transaction
from tests.support.webhook_receiver import SECRET, Receiver, serve, status

SECOND = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
LOCAL = {"secret": SECRET, "allow_networks": ["127.0.0.0/8"], "allow_http": True}


def sink_of(receiver: Receiver, **options: Any) -> WebhookSink:
    url = f"http://127.0.0.1:{receiver.port}/hook"
    return WebhookSink(SinkOptions("shop", url, "", {**LOCAL, **options}))


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    runner = await serve(made)
    yield made
    await runner.cleanup()


async def deliver(sink: WebhookSink, *transactions: Any) -> None:
    await sink.open()
    try:
        await sink.write(transactions)
        await sink.commit({})
    finally:
        await sink.close()


async def test_a_request_is_signed_and_names_its_record(receiver: Receiver) -> None:
    await deliver(sink_of(receiver, headers={"X-Team": "a"}), inserts(10, 1))
    [(body, headers)] = receiver.requests
    assert body["data"] == {"id": 1}
    assert headers["webhook-id"] == "a-0"
    assert headers["headrace-position"] == "10 0"
    assert headers["X-Team"] == "a"
    assert headers["Content-Type"] == "application/json"


async def test_two_secrets_sign_each_request(receiver: Receiver) -> None:
    await deliver(sink_of(receiver, secret=SECOND, second_secret=SECRET), inserts(10, 1))
    assert len(receiver.requests[0][1]["webhook-signature"].split(" ")) == 2


async def test_an_id_that_a_header_can_not_hold_is_encoded(receiver: Receiver) -> None:
    odd = event(10, 0, "INSERT", {"id": 1}, last=True, msg_id="a.b\r\nX: é")
    await deliver(sink_of(receiver), of_events(odd))
    assert receiver.requests[0][1]["webhook-id"] == "a%2Eb%0D%0AX%3A%20%C3%A9"


@pytest.mark.parametrize("code", [500, 502, 503, 408, 425, 429])
async def test_a_retry_has_the_same_id_and_comes_before_later_changes_of_its_key(
    receiver: Receiver, code: int
) -> None:
    receiver.answers = [status(code)]
    await deliver(
        sink_of(receiver),
        transaction(10, ("INSERT", {"id": 1}), ("UPDATE", {"id": 1}), ("DELETE", {"id": 1})),
    )
    ids = [headers["webhook-id"] for _, headers in receiver.requests]
    assert ids == ["a-0", "a-0", "a-1", "a-2"]


async def test_keys_use_several_lanes_and_each_keeps_its_order(receiver: Receiver) -> None:
    receiver.delay_s = 0.005
    changes = [("UPDATE", {"id": one % 10, "n": one}) for one in range(100)]
    await deliver(sink_of(receiver, lanes=4), transaction(10, *changes))
    by_key: dict[int, list[int]] = {}
    for body, _ in receiver.requests:
        by_key.setdefault(body["data"]["id"], []).append(body["data"]["n"])
    assert by_key == {key: list(range(key, 100, 10)) for key in range(10)}
    assert 1 < receiver.busiest <= 4


async def test_a_record_without_a_key_comes_between_all_others(receiver: Receiver) -> None:
    receiver.delay_s = 0.005
    before = [("INSERT", {"id": one}) for one in range(20)]
    after = [("INSERT", {"id": one}) for one in range(100, 120)]
    await deliver(sink_of(receiver), transaction(10, *before, ("TRUNCATE", {"id": 50}), *after))
    assert sorted(receiver.ids[:20]) == list(range(20))
    assert receiver.ids[20] == 50
    assert sorted(receiver.ids[21:]) == list(range(100, 120))


@pytest.mark.parametrize("code", [429, 503])
async def test_all_lanes_wait_as_long_as_the_receiver_asks(receiver: Receiver, code: int) -> None:
    receiver.answers = [status(code, Retry_After="2")]
    loop = asyncio.get_running_loop()
    sink = sink_of(receiver, lanes=1)
    began = loop.time()
    await deliver(sink, inserts(10, 1, 2))
    assert loop.time() - began >= 2
    assert receiver.ids == [1, 1, 2]


async def test_410_ends_the_sink_until_someone_resumes_it(receiver: Receiver) -> None:
    receiver.answers = [status(410)]
    with pytest.raises(DisabledError, match="410"):
        await deliver(sink_of(receiver), inserts(10, 1, 1, 1))
    assert receiver.ids == [1]


async def test_a_refused_record_is_named_without_the_text_of_the_answer(receiver: Receiver) -> None:
    receiver.answers = [status(422)]
    with pytest.raises(RefusedError, match="422") as refused:
        await deliver(sink_of(receiver, lanes=1), inserts(10, 1, 2))
    assert refused.value.record.id == "a-0"
    assert "because" not in str(refused.value)
    assert receiver.ids == [1]


async def test_a_body_that_is_too_large_is_not_sent(receiver: Receiver) -> None:
    with pytest.raises(RefusedError, match="body_bytes_max"):
        await deliver(sink_of(receiver, body_bytes_max=1000), inserts(10, 1, note="x" * 1000))
    assert receiver.requests == []


@pytest.mark.parametrize("code", [401, 403, 404, 301])
async def test_what_no_record_would_overcome_ends_the_sink(receiver: Receiver, code: int) -> None:
    receiver.answers = [status(code, Location="http://10.0.0.1/")]
    with pytest.raises(SinkError) as error:
        await deliver(sink_of(receiver), inserts(10, 1))
    assert type(error.value) is SinkError
    assert not error.value.retry
    assert receiver.ids == [1]


async def test_a_receiver_that_hangs_is_asked_again(receiver: Receiver) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    receiver.answers = [never]
    await deliver(sink_of(receiver, timeout_s=0.5), inserts(10, 1))
    assert receiver.ids == [1, 1]


async def test_a_receiver_that_answers_without_end_has_accepted_the_record(
    receiver: Receiver,
) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65536)

    receiver.answers = [endless]
    await deliver(sink_of(receiver, lanes=1), inserts(10, 1, 2))
    assert receiver.ids == [1, 2]


async def test_a_receiver_that_ends_the_connection_is_asked_again(receiver: Receiver) -> None:
    async def gone(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    receiver.answers = [gone]
    await deliver(sink_of(receiver), inserts(10, 1))
    assert receiver.ids == [1, 1]


async def test_a_receiver_that_stays_away_ends_the_session(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.5)
    receiver.answers = [status(500)] * 20
    with pytest.raises(SinkAwayError, match="500"):
        await deliver(sink_of(receiver), inserts(10, 1))


async def test_a_private_address_is_refused_also_behind_a_name(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SinkError, match="allow_networks"):
        await sink_of(receiver, allow_networks=[]).open()
    named = WebhookSink(
        SinkOptions(
            "shop",
            f"http://receiver.example:{receiver.port}/hook",
            "",
            {"secret": SECRET, "allow_http": True},
        )
    )
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", receiver.port))]
    loop = asyncio.get_running_loop()

    async def resolved(*_: Any, **__: Any) -> Any:
        return found

    monkeypatch.setattr(loop, "getaddrinfo", resolved)
    with pytest.raises(SinkError, match="not a public address"):
        await deliver(named, inserts(10, 1))
    assert receiver.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.0",  # noqa: S104  # only parsed
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "2002:0a00:0001::",
        "ff02::1",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert allowed(address, []) is False


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::8.8.8.8"])
def test_addresses_that_are_public(address: str) -> None:
    assert allowed(address, []) is True


def test_a_named_network_is_allowed_and_its_neighbour_is_not() -> None:
    named = networks("shop", ["10.1.0.0/16", "fd00::/8"])
    assert allowed("10.1.2.3", named) is True
    assert allowed("::ffff:10.1.2.3", named) is True
    assert allowed("fd00::1", named) is True
    assert allowed("10.2.0.1", named) is False
    assert allowed("receiver.example", named) is None


async def test_the_receivers_certificate_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    receiver = Receiver()
    runner = await serve(receiver, context)
    options = {"secret": SECRET, "allow_networks": ["127.0.0.0/8", "::1/128"]}

    def sink(**more: Any) -> WebhookSink:
        url = f"https://localhost:{receiver.port}/hook"
        return WebhookSink(SinkOptions("shop", url, "", {**options, **more}))

    await deliver(sink(ca_file=str(authority.certificate)), inserts(10, 1))
    assert receiver.ids == [1]
    with pytest.raises(SinkAwayError, match=r"(?i)certificate"):
        await deliver(sink(), inserts(10, 2))
    assert receiver.ids == [1]
    await runner.cleanup()


@pytest.mark.parametrize(
    ("to", "options", "says"),
    [
        ("http://a.example", {"secret": SECRET}, "https://"),
        ("https://a:b@a.example", {"secret": SECRET}, "credentials into `headers`"),
        ("https://a.example", {"secret": "whsec_short"}, "24 to 64 random bytes"),
        ("https://a.example", {}, "24 to 64 random bytes"),
        ("https://a.example", {"secret": SECRET, "allow_networks": ["10.0.0.1/8"]}, "10.1.0.0/16"),
        ("https://a.example", {"secret": SECRET, "lane": 1}, "Did you mean lanes"),
    ],
)
def test_a_wrong_option_is_named_before_a_connection_is_opened(
    to: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says) as refused:
        WebhookSink(SinkOptions("shop", to, "", options))
    assert SECRET not in str(refused.value)
