"""Events compressed with a dictionary per table: stored before it is used, kept while it is needed."""

from __future__ import annotations

import asyncio
import json
import random
from unittest import mock

import pytest
from nats.js.errors import NoKeysError

from headrace.contract import dictionaries
from headrace.jetstream.provisioning import LARGE_MARGIN_S
from headrace.lsn import Position
from headrace.publisher import compression
from headrace.publisher.compression import PAYLOAD_BYTES_MAX, SAMPLES, Compression
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.settings import Settings, load
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

AGE_MAX_S = 3600
Items = list[PublishedEvent | CompleteUpTo]


def settings(slot: str = "shop", **variables: str) -> Settings:
    names = {f"HEADRACE_{name.upper()}": value for name, value in variables.items()}
    return load({"HEADRACE_SLOT": slot, "HEADRACE_ZSTD_EVENTS": "true", **names})


WANTED = settings(cdc_age_max_s=str(AGE_MAX_S))


def event(number: int, *, table: str = "users", payload: bytes | None = None) -> PublishedEvent:
    if payload is None:
        row = {"id": number, "name": f"user {number}", "mail": f"user{number}@example.org"}
        payload = json.dumps({"operation": "INSERT", "table": table, "data": row}).encode()
    position = Position(100 + number, 0)
    return PublishedEvent(
        f"cdc.{table}.insert", f"{number}-0", payload, advances=True, position=position, ends=True
    )


def incompressible(number: int) -> PublishedEvent:
    return event(number, payload=random.Random(number).randbytes(200))


def read(one: PublishedEvent | CompleteUpTo) -> bytes:
    """A consumer's view."""
    assert isinstance(one, PublishedEvent)
    if not one.headers:
        return one.payload
    assert one.headers == {"Content-Encoding": "zstd"}
    return dictionaries.decompressor(one.payload).decompress(one.payload)


def is_compressed(one: PublishedEvent | CompleteUpTo) -> bool:
    return isinstance(one, PublishedEvent) and bool(one.headers)


async def opened(nats: SimulatedNats, wanted: Settings = WANTED) -> Compression:
    made = Compression(nats.jetstream(), await nats.state(), wanted)
    await made.open()
    return made


async def trained(nats: SimulatedNats) -> Compression:
    one = await opened(nats)
    await one.of([event(number) for number in range(SAMPLES)])
    return one


async def dictionary_ids(nats: SimulatedNats) -> set[str]:
    try:
        return set(await (await nats.state()).keys(filters=["dictionary.>"]))
    except NoKeysError:
        return set()


@on_virtual_time
async def test_a_dictionary_is_trained_from_the_first_events_and_stored_before_it_is_used() -> None:
    async with simulated_nats(WANTED) as nats:
        one = await opened(nats)
        first: Items = [event(number) for number in range(SAMPLES - 1)]
        assert await one.of(first) == first
        assert await dictionary_ids(nats) == set()
        (last,) = await one.of([event(SAMPLES)])
        assert not is_compressed(last)
        (key,) = await dictionary_ids(nats)
        (next_one,) = await one.of([event(SAMPLES + 1)])
        assert is_compressed(next_one)
        assert read(next_one) == event(SAMPLES + 1).payload
        assert isinstance(next_one, PublishedEvent)
        assert key == dictionaries.key(dictionaries.named_by(next_one.payload))
        (other,) = await one.of([event(1, table="orders")])
        assert not is_compressed(other), "each table has its own"


@on_virtual_time
async def test_only_small_row_events_are_compressed_and_only_if_that_helps() -> None:
    async with simulated_nats(WANTED) as nats:
        one = await trained(nats)
        text = event(1).payload
        largest = text + b" " * (PAYLOAD_BYTES_MAX - len(text))
        plain: Items = [
            event(1)._replace(advances=False),
            event(2, payload=largest + b" "),
            event(3)._replace(large=b"in the object store"),
            incompressible(4),
            CompleteUpTo(200, True),
        ]
        assert await one.of(plain) == plain
        (edge,) = await one.of([event(5, payload=largest)])
        assert is_compressed(edge)


@on_virtual_time
async def test_a_compressed_event_is_smaller_together_with_its_header() -> None:
    async with simulated_nats(WANTED) as nats:
        one = await trained(nats)
        header = len("Content-Encoding") + len("zstd")
        sizes = set()
        for size in range(1, 200):
            (found,) = await one.of([event(1, payload=b"z" * size)])
            assert isinstance(found, PublishedEvent)
            if is_compressed(found):
                assert len(found.payload) + header < size
            sizes.add(is_compressed(found))
        assert sizes == {True, False}


@pytest.mark.parametrize("variables", [{"zstd_events": "false"}, {"delivery": "batch"}])
@on_virtual_time
async def test_nothing_is_compressed_unless_it_is_wanted_nor_in_batches(
    variables: dict[str, str],
) -> None:
    async with simulated_nats(WANTED) as nats:
        one = await opened(nats, settings(**variables))
        items: Items = [event(number) for number in range(SAMPLES + 10)]
        assert await one.of(items) == items


@on_virtual_time
async def test_events_with_nothing_in_common_are_tried_once() -> None:
    async with simulated_nats(WANTED) as nats:
        one = await opened(nats)
        items: Items = [event(number, payload=b"") for number in range(SAMPLES)]
        assert await one.of(items) == items
        items = [event(number) for number in range(SAMPLES + 10)]
        assert await one.of(items) == items
        assert await dictionary_ids(nats) == set()


@on_virtual_time
async def test_a_restart_goes_on_with_the_dictionary_that_it_has() -> None:
    async with simulated_nats(WANTED) as nats:
        await trained(nats)
        dictionaries._known.clear()
        again = await opened(nats)
        (found,) = await again.of([event(1)])
        assert is_compressed(found)
        assert read(found) == event(1).payload
        assert len(await dictionary_ids(nats)) == 1


@on_virtual_time
async def test_what_another_source_compressed_can_be_read() -> None:
    async with simulated_nats(WANTED) as nats:
        one = await trained(nats)
        (theirs,) = await one.of([event(1)])
        dictionaries._known.clear()
        await opened(nats, settings("other"))
        assert read(theirs) == event(1).payload


@on_virtual_time
async def test_a_dictionary_that_is_gone_is_trained_again() -> None:
    async with simulated_nats(WANTED) as nats:
        await trained(nats)
        (key,) = await dictionary_ids(nats)
        await (await nats.state()).delete(key)
        again = await opened(nats)
        (found,) = await again.of([event(1)])
        assert not is_compressed(found)


async def outgrow(one: Compression) -> None:
    """The table's events compress well, and then badly; fewer of them than it takes in earnest."""
    with mock.patch.object(compression, "RATIO_EVENTS", 200):
        for number in range(200):
            await one.of([event(number)])
        for number in range(200):
            await one.of([incompressible(number)])


@on_virtual_time
async def test_a_stream_without_an_age_limit_keeps_all_its_dictionaries() -> None:
    async with simulated_nats(WANTED) as nats:
        nats.cdc.max_age = 0
        one = await trained(nats)
        (first,) = await dictionary_ids(nats)
        await outgrow(one)
        await one.of([event(number, table="users") for number in range(5000, 5000 + SAMPLES)])
        await asyncio.sleep(100 * AGE_MAX_S)
        await one.of([event(number, table="t") for number in range(SAMPLES)])
        assert first in await dictionary_ids(nats)


@on_virtual_time
async def test_a_dictionary_that_no_longer_fits_is_replaced_and_kept_while_messages_need_it() -> (
    None
):
    async with simulated_nats(WANTED) as nats:
        one = await trained(nats)
        (first,) = await dictionary_ids(nats)
        await outgrow(one)
        (found,) = await one.of([event(1)])
        assert not is_compressed(found), "another is trained"
        await one.of([event(number, table="users") for number in range(5000, 5000 + SAMPLES)])
        both = await dictionary_ids(nats)
        assert len(both) == 2
        assert first in both
        dictionaries._known.clear()
        await opened(nats)
        assert dictionaries.knows(int(first.rpartition(".")[2])), "the stream may need it"
        for waits_s, kept in ((AGE_MAX_S + LARGE_MARGIN_S - 60, True), (120, False)):
            await asyncio.sleep(waits_s)
            await one.of([event(number, table=f"t{waits_s}") for number in range(SAMPLES)])
            assert (first in await dictionary_ids(nats)) is kept


@pytest.mark.parametrize(
    ("ratios", "outgrown"),
    [
        ([20], False),
        ([20, 26], False),
        ([20, 27], True),
        # Compared with the first events, however slowly it comes.
        ([20, 23, 26, 29], True),
    ],
)
def test_a_dictionary_is_outgrown_when_events_compress_much_worse_than_its_first_ones(
    ratios: list[int], *, outgrown: bool
) -> None:
    table = compression._Table()
    found = []
    for ratio in ratios:
        table.events = compression.RATIO_EVENTS
        table.before += 100
        table.after += ratio
        found.append(table.outgrown())
        assert not table.outgrown(), "too few events to tell"
    assert found == [*[False] * (len(ratios) - 1), outgrown]
