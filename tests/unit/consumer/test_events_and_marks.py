"""Events as consumers see them, where watermarks are stored, and how far a follower is behind."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from nats.js.errors import NotFoundError

from headrace.consumer import FileWatermarks, MemoryWatermarks, Watermark
from headrace.consumer.behind import Behind, behind
from headrace.consumer.event import of_message
from headrace.consumer.watermark import WatermarkError
from headrace.errors import DecodeError
from headrace.lsn import Position

BODY: dict[str, Any] = {
    "source": "s",
    "schema": "app",
    "table": "users",
    "operation": "UPDATE",
    "data": {"id": 1},
    "old": {"id": 2},
    "exact": {"n": "1.50"},
    "exact_old": {"n": "1.0"},
    "unchanged": ["note"],
    "tx": {"xid": 5, "lsn": 70, "seq": 3, "last": True, "ts": None},
}


def array(count: int) -> list[dict[str, Any]]:
    return [{**BODY, "tx": {**BODY["tx"], "seq": seq}} for seq in range(count)]


@pytest.mark.parametrize("write", [lambda body: json.dumps(body).encode(), msgpack.packb])
def test_a_single_event_is_of_its_sources_lane(write: Any) -> None:
    (event,) = of_message(write(BODY), "cdc.x.update", 9)
    assert (event.source, event.schema, event.table) == ("s", "app", "users")
    assert (event.operation, event.position) == ("UPDATE", Position(70, 3))
    assert (event.subject, event.stream_seq) == ("cdc.x.update", 9)
    assert (event.lane, event.closes, event.complete) == ("s", True, 0)
    assert (event.data, event.old) == ({"id": 1}, {"id": 2})
    assert (event.exact, event.exact_old) == ({"n": "1.50"}, {"n": "1.0"})
    assert event.unchanged == ["note"]
    assert event.advances


def test_an_events_absent_parts_are_empty() -> None:
    small = {key: BODY[key] for key in ("source", "schema", "table", "tx")}
    (event,) = of_message(json.dumps({**small, "operation": "GAP"}).encode(), "cdc._gap", 1)
    assert (event.data, event.old, event.exact, event.exact_old) == ({}, None, {}, {})
    assert event.unchanged == []
    assert not event.advances


def test_an_arrays_events_are_of_their_tables_lane_and_the_last_one_closes() -> None:
    header = b"NATS/1.0\r\nHeadrace-Complete: 71\r\n\r\n"
    events = of_message(json.dumps(array(3)).encode(), "cdc.x.batch", 9, header)
    assert [event.lane for event in events] == ["s/app.users"] * 3
    assert [event.closes for event in events] == [False, False, True]
    assert [event.complete for event in events] == [0, 0, 71]
    assert [event.position.seq for event in events] == [0, 1, 2]


def test_an_array_of_one_is_still_an_array() -> None:
    (event,) = of_message(json.dumps(array(1)).encode(), "cdc.x.batch", 9)
    assert (event.lane, event.closes, event.complete) == ("s/app.users", True, 0)
    assert of_message(b"[]", "cdc.x.batch", 9, b"Headrace-Complete: 71") == []


@pytest.mark.parametrize("body", [b"7", b'"text"', b"[1]", b"{}", b'{"tx": {"lsn": 1}}'])
def test_what_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError):
        of_message(body if body[:1] in b"{[" else msgpack.packb(json.loads(body)), "cdc.x", 1)


# Watermarks.


async def test_watermarks_in_memory_are_copies() -> None:
    store = MemoryWatermarks()
    await store.save("s", Watermark(Position(1, 2), 3))
    loaded = await store.load()
    loaded.clear()
    assert await store.load() == {"s": Watermark(Position(1, 2), 3)}


async def test_watermarks_in_a_file_survive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "marks.json"
    store = FileWatermarks(path)
    assert await store.load() == {}
    await store.save("s", Watermark(Position(1, 2), 3))
    await store.save("s/public.a", Watermark(Position(4, 5), 6))
    await store.save("s", Watermark(Position(7, 8), 9))
    saved = {"s": Watermark(Position(7, 8), 9), "s/public.a": Watermark(Position(4, 5), 6)}
    assert await FileWatermarks(path).load() == saved


async def test_a_lane_that_was_loaded_stays_when_another_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "marks.json"
    await FileWatermarks(path).save("s", Watermark(Position(1, 2), 3))
    store = FileWatermarks(path)
    await store.load()
    await store.save("t", Watermark(Position(4, 5), 6))
    assert set(await FileWatermarks(path).load()) == {"s", "t"}


@pytest.mark.parametrize("text", ["{", "[]", '{"s": [1]}', '{"s": 7}'])
async def test_a_file_without_watermarks_is_an_error_with_a_remedy(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "marks.json"
    path.write_text(text)
    with pytest.raises(WatermarkError, match="does not contain watermarks"):
        await FileWatermarks(path).load()


# The lag.


class Stream:
    """A stream of messages with their ages in seconds."""

    def __init__(self, first_seq: int, ages_s: dict[int, float | None]) -> None:
        self.first_seq = first_seq
        self.last_seq = max(ages_s, default=first_seq - 1)
        self.ages_s = ages_s
        self.asked: list[int] = []

    async def stream_info(self, _name: str) -> Any:
        state = SimpleNamespace(first_seq=self.first_seq, last_seq=self.last_seq)
        return SimpleNamespace(state=state)

    async def get_msg(self, _name: str, *, seq: int, next: bool) -> Any:  # noqa: A002  # nats-py's
        self.asked.append(seq)
        there = [one for one in sorted(self.ages_s) if one == seq or (next and one > seq)]
        if not there or self.ages_s[there[0]] == 0:
            raise NotFoundError
        age_s = self.ages_s[there[0]]
        then = None if age_s is None else datetime.now(UTC) - timedelta(seconds=age_s)
        return SimpleNamespace(time=then)


def lag(stream: Stream, settled_seq: int) -> Behind:
    return asyncio.run(behind(stream, "CDC", settled_seq))  # type: ignore[arg-type]  # its port


def test_a_follower_at_the_end_is_not_behind() -> None:
    stream = Stream(1, {1: 9.0, 2: 5.0})
    assert lag(stream, 2) == Behind(0, 0.0)
    assert stream.asked == []
    assert lag(Stream(1, {}), 0) == Behind(0, 0.0)
    assert lag(Stream(5, {}), 9) == Behind(0, 0.0)


def test_the_lag_is_the_oldest_unprocessed_messages_age() -> None:
    stream = Stream(1, {1: 50.0, 2: 30.0, 3: 10.0})
    found = lag(stream, 1)
    assert found.messages == 2
    assert 30.0 <= found.age_s < 31.0
    assert stream.asked == [2]


def test_discarded_messages_are_no_lag() -> None:
    found = lag(Stream(4, {4: 20.0, 5: 10.0}), 1)
    assert found.messages == 2
    assert 20.0 <= found.age_s < 21.0


def test_a_clock_that_is_ahead_makes_no_negative_lag() -> None:
    assert lag(Stream(1, {1: -60.0}), 0) == Behind(1, 0.0)
    assert lag(Stream(1, {1: None}), 0) == Behind(1, 0.0)


def test_messages_discarded_since_the_stream_was_asked_are_no_lag() -> None:
    assert lag(Stream(1, {1: 0, 2: 0}), 0) == Behind(0, 0.0)
