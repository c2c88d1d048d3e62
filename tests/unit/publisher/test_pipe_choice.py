"""The way of publishing depends on the settings and on the server's features."""

from __future__ import annotations

import pytest

from headrace.contract.subjects_and_ids import table_token
from headrace.jetstream.publishing.fast import FastIngestUnsupportedError, FastPipe
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Pipe
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.metrics.counters import Counters
from headrace.publisher.atomic_pipe import AtomicPipe
from headrace.publisher.chain_pipe import ChainPipe, _headers_bytes
from headrace.publisher.pipe_choice import chosen_pipe
from headrace.publisher.resume_point import reader_of
from headrace.settings import Settings, load
from tests.support.simulated_nats import simulated_nats
from tests.support.virtual_time import on_virtual_time

OLD, NEW = "2.13.9", "2.14.0"
LIMITS = {
    "HEADRACE_WINDOW_MESSAGES_MAX": "77",
    "HEADRACE_WINDOW_BYTES_MAX": "90000",
    "HEADRACE_ATOMIC_MESSAGES_MAX": "55",
    "HEADRACE_ATOMIC_BYTES_MAX": "80000",
    "HEADRACE_ACK_TIMEOUT_S": "9",
}


async def chosen(of: Settings, version: str) -> tuple[Pipe, Counters]:
    async with simulated_nats(of) as nats:
        nats.server.version = version
        client = nats.client()
        stats = Counters()
        tail = StreamTail(client.jetstream(), of.streams.cdc, reader_of("s"))
        return await chosen_pipe(client, of, stats, tail), stats


@pytest.mark.parametrize(
    ("delivery", "ingest", "version", "kind", "mode"),
    [
        ("event", "auto", NEW, FastPipe, "fast"),
        ("batch", "fast", NEW, FastPipe, "fast"),
        ("event", "auto", OLD, ChainPipe, "chain"),
        ("event", "chain", NEW, ChainPipe, "chain"),
        ("transaction", "auto", NEW, AtomicPipe, "atomic"),
    ],
)
@on_virtual_time
async def test_messages_are_published_as_wanted_and_offered(
    delivery: str, ingest: str, version: str, kind: type[Pipe], mode: str
) -> None:
    wanted = {"HEADRACE_DELIVERY": delivery, "HEADRACE_INGEST": ingest}
    pipe, stats = await chosen(load({**LIMITS, **wanted}), version)
    assert type(pipe) is kind
    limits = (55, 80_000, 9.0) if kind is AtomicPipe else (77, 90_000, 9.0)
    assert (pipe._messages_max, pipe._bytes_max, pipe._ack_timeout_s) == limits
    shown = stats.values()["ingest_mode"]
    assert isinstance(shown, dict)
    assert [name for name, number in shown.items() if number] == [mode]


@on_virtual_time
async def test_fast_ingest_that_is_required_and_not_offered_is_an_error() -> None:
    with pytest.raises(FastIngestUnsupportedError):
        await chosen(load({"HEADRACE_INGEST": "fast"}), OLD)


@pytest.mark.parametrize("headers", [{}, {"Zone": "z"}, {"A": "é" * 100, "Note": "n" * 900}])
@pytest.mark.parametrize("last_id", ["", "123-a", "x" * 300])
def test_headers_are_never_counted_as_smaller_than_nats_writes_them(
    headers: dict[str, str], last_id: str
) -> None:
    message = Outgoing("cdc.a.insert", table_token("app", "t" * 60), b"", headers)
    place = {"Nats-Expected-Last-Msg-Id": last_id} if last_id else {}
    for expected in (place, {"Nats-Expected-Last-Sequence": str(2**64 - 1)}):
        written = {"Nats-Msg-Id": message.msg_id, **headers, **expected}
        lines = "".join(f"{name}: {value}\r\n" for name, value in written.items())
        size = len(f"NATS/1.0\r\n{lines}\r\n".encode())
        counted = _headers_bytes(message, last_id)
        assert size <= counted <= size + len(last_id) + 60
