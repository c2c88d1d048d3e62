"""A mirror's commits end where a transaction of its source ends: streams written by hand, read by
the follower.

Each commit of the target is judged by the rows that it shows, compared with the published
transactions.
"""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from headrace.consumer import Watermark
from headrace.consumer.pull import Delivered, Pull
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.metrics.counters import Counters
from headrace.mirror import CreateTable, Streams, follower
from headrace.mirror.ahead import SINGLE_MESSAGES, Ahead
from headrace.mirror.bootstrap import Bootstrap
from headrace.mirror.follower import Follower
from headrace.mirror.mirror_state import SEEN
from headrace.mirror.table import BootstrapRun, Phase, TableState
from headrace.mirror.verify_hold import VerifyHold
from headrace.settings import StreamSettings
from headrace.testing.mirror_streams import (
    PATIENCE_S,
    Body,
    Shown,
    book_of,
    consumed,
    copied,
    following,
    gap,
    phase,
    publish,
    publish_array,
    row,
    schema,
    table,
)

# Longer than a mirror ever waited before it took a transaction for whole.
LONG_S = 1.5


@pytest.mark.parametrize("every", [True, False], ids=["every_table", "some_tables"])
async def test_half_a_transaction_is_never_shown_however_long_the_rest_takes(
    client: Client, every: bool
) -> None:
    target = Shown()
    async with following(client, target, "a", "b", every=every):
        await publish(client, row("a", 10, 0, last=True), row("a", 20, 0), row("b", 20, 1))
        await target.shows({"a10.0"})
        # Another source continues meanwhile, and the stream's end is of a later LSN.
        await consumed(client, await publish(client, row("a", 90, 0, last=True, source="t")))
        await asyncio.sleep(LONG_S)
        assert {"a20.0", "b20.1"}.isdisjoint(target.rows)
        await publish(client, row("b", 20, 2, last=True))
        await target.shows({"a20.0", "b20.1", "b20.2"})
    assert not any(
        {"a20.0", "b20.1", "b20.2"} & {*seen} not in ({"a20.0", "b20.1", "b20.2"}, set())
        for seen in target.commits
    )


async def test_what_the_catalog_showed_ends_no_transaction_that_it_stands_in(
    client: Client,
) -> None:
    """A publisher that begins a transaction again may find out in between what was so before it."""
    target = Shown()
    shown = {"xid": 0, "lsn": 15, "ts": None, "seq": 0, "last": False}
    async with following(client, target, "a", "b", every=True):
        await publish(client, row("a", 10, 0, last=True), row("a", 20, 0))
        await consumed(client, await publish(client, schema("b", 15, changes=[], tx=shown)))
        await target.shows({"a10.0"})
        await asyncio.sleep(LONG_S)
        target.shown_once("a10.0")
        await publish(client, row("b", 20, 1, last=True))
        await target.shows({"a20.0", "b20.1"})
    assert all(("a20.0" in seen) == ("b20.1" in seen) for seen in target.commits)


async def test_a_mirror_that_is_behind_and_whose_reader_pauses_shows_no_part(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream has later transactions, also of the mirror's tables, which the mirror does not get
    for a while.
    """
    target, resumed, original, read = Shown(), asyncio.Event(), Pull.read, 0
    published = [
        row("a", 20, 0),
        row("b", 20, 1),
        row("a", 20, 2, last=True),
        row("c", 30, 0, last=True),
    ]
    await publish(client, *published, row("a", 40, 0, last=True))

    async def slow(self: Pull, wait_s: float) -> list[Delivered]:
        nonlocal read
        if read and not resumed.is_set():
            await asyncio.sleep(min(wait_s, 0.05))
            return []
        found = await original(self, wait_s)
        read += len(found)
        return found

    monkeypatch.setattr(Pull, "read", slow)
    monkeypatch.setattr("headrace.consumer.pull.READ_MESSAGES", 2)
    async with following(client, target, "a", "b"):
        await consumed(client, 5)
        await asyncio.sleep(LONG_S)
        assert target.commits == []
        assert 0 < read < 3
        resumed.set()
        await target.shows({"a20.0", "b20.1", "a20.2", "a40.0"})
    assert {"a20.0", "b20.1", "a20.2"} <= set(target.commits[0])


@pytest.mark.parametrize(
    "closing",
    [
        [row("c", 20, 1, last=True)],
        [row("c", 20, 1), row("c", 30, 0)],
        [row("c", 20, n, last=n == 99) for n in range(1, 100)],
    ],
    ids=["its_last_event", "the_next_ones_begin", "after_many_events"],
)
async def test_a_transaction_that_ends_in_a_table_not_followed_is_shown_at_once(
    client: Client, closing: list[Body]
) -> None:
    target = Shown()
    async with following(client, target, "a"):
        await publish(client, row("a", 20, 0), row("c", 90, 0, last=True, source="t"))
        await asyncio.sleep(LONG_S)
        assert target.rows == []
        await publish(client, *closing)
        async with asyncio.timeout(PATIENCE_S):
            await target.shows({"a20.0"})


@pytest.mark.parametrize("more", [0, SINGLE_MESSAGES], ids=["one_by_one", "in_bulk"])
async def test_a_transaction_that_lost_an_event_is_not_over_where_a_table_not_followed_says_so(
    client: Client, more: int
) -> None:
    js = client.jetstream()
    first = await publish(client, row("a", 20, 0))
    before = await publish(client, *(row("c", 20, n) for n in range(1, more + 1)), row("c", 20, 90))
    lost = await publish(client, row("a", 20, 91))
    await publish(client, row("c", 20, 92, last=True))
    assert await js.delete_msg("CDC", lost)
    ahead = Ahead(client, "CDC", DictionaryReader(js, StreamSettings().state), frozenset({"a"}))
    found = [event async for events in ahead.read(first) for event in events]
    assert [event.stream_seq for event in found] == list(range(first + 1, before + 1))
    assert ahead.at == before


async def test_transactions_of_two_sources_that_stand_inside_each_other_are_whole(
    client: Client,
) -> None:
    target = Shown()
    wholes = [{"a20.0", "a20.1"}, {"b5.0", "b5.1"}, {"a30.0", "a30.1"}, {"b6.0", "b6.1"}]
    bodies = [
        row("a", 20, 0),
        row("b", 5, 0, source="t"),
        row("a", 20, 1, last=True),
        row("a", 30, 0),
    ]
    bodies += [
        row("b", 5, 1, last=True, source="t"),
        row("b", 6, 0, source="t"),
        row("a", 30, 1, last=True),
    ]
    async with following(client, target, "a", "b", every=True, sources={"b": "t"}):
        for body in bodies:
            await publish(client, body)
            await asyncio.sleep(0.3)
        assert {"a20.0", "a30.0", "b5.0"} <= set(target.rows)
    # An incomplete transaction comes again after a restart; one that was shown does not.
    async with following(client, target, "a", "b", every=True, sources={"b": "t"}):
        await publish(client, row("b", 6, 1, last=True, source="t"))
        await target.shows({"b6.1"})
    target.shown_once(*sorted(set().union(*wholes)))
    assert all(whole & {*seen} in (whole, set()) for whole in wholes for seen in target.commits)


async def test_a_transaction_larger_than_memory_is_shown_when_it_ends(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "SPILL_EVENTS", 10)
    target = Shown()
    async with following(client, target, "a", "b", every=True, sources={"b": "t"}):
        await publish(client, row("a", 10, 0, last=True), *(row("a", 20, n) for n in range(35)))
        await consumed(client, await publish(client, row("b", 7, 0, last=True, source="t")))
        await asyncio.sleep(LONG_S)
        assert not any(name.startswith("a20") for name in target.rows)
        await publish(client, row("a", 20, 35, last=True))
        await target.shows({f"a20.{n}" for n in range(36)} | {"a10.0", "b7.0"})
    target.shown_once("a10.0", "b7.0", *(f"a20.{n}" for n in range(36)))
    assert all(sum(name.startswith("a20") for name in seen) in {0, 36} for seen in target.commits)


@pytest.mark.parametrize("spills", [False, True], ids=["in_memory", "spilled"])
async def test_a_transaction_that_a_gap_cuts_off_is_never_shown(
    client: Client, monkeypatch: pytest.MonkeyPatch, spills: bool
) -> None:
    monkeypatch.setattr(follower, "SPILL_EVENTS", 5 if spills else 1000)
    target = Shown()
    async with following(client, target, "a", "b", every=True, sources={"b": "t"}) as mirror:
        await publish(
            client, row("a", 10, 0, last=True), *(row("a", 20, n) for n in range(12)), gap(0x50)
        )
        await publish(client, row("b", 7, 0, last=True, source="t"))
        await phase(mirror.book, "a", Phase.WANTED)
        await copied(mirror.book, "a", 0x60, "a10.0")
        await publish(client, row("a", 0x70, 0, last=True))
        await target.shows({"a112.0", "b7.0"})
    target.shown_once("a10.0", "a112.0", "b7.0")
    assert not any(name.startswith("a20") for seen in target.commits for name in seen)


async def test_arrays_of_several_tables_are_shown_by_whole_transactions(client: Client) -> None:
    """Flushes cut transactions anywhere: 20 is in two of them, 30 in the second and third."""
    target = Shown()
    wholes = [{"a10.0", "b10.1"}, {"a20.0", "b20.1", "a20.2"}, {"b30.0", "a30.1"}]
    async with following(client, target, "a", "b", every=True):
        await publish_array(client, row("a", 10, 0), row("a", 20, 0))
        await publish_array(client, row("b", 10, 1, last=True), row("b", 20, 1), complete=11)
        await target.shows({"a10.0", "b10.1"})
        await publish_array(client, row("a", 20, 2, last=True), complete=11)
        await asyncio.sleep(LONG_S)
        assert set(target.rows) == wholes[0]
    async with following(client, target, "a", "b", every=True):
        await publish_array(client, row("b", 30, 0), complete=21)
        await target.shows(wholes[1])
        await publish_array(client, row("a", 30, 1, last=True), complete=31)
        await target.shows(wholes[2])
    target.shown_once(*set().union(*wholes))
    assert all(whole & {*seen} in (whole, set()) for whole in wholes for seen in target.commits)


async def test_arrays_larger_than_memory_are_shown_by_whole_transactions(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later transaction's part comes before the earlier one's."""
    monkeypatch.setattr(follower, "SPILL_EVENTS", 10)
    target, later = Shown(), {"b20.12", "b20.13", *(f"a20.{n}" for n in range(12))}
    async with following(client, target, "a", "b", every=True):
        await publish_array(client, *(row("a", 20, n) for n in range(12)))
        both = [*(row("b", 10, n, last=n == 11) for n in range(12)), row("b", 20, 12)]
        await publish_array(client, *both, complete=20)
        await consumed(client, 2)
        await asyncio.sleep(LONG_S)
        assert later.isdisjoint(target.rows)
        await publish_array(client, row("b", 20, 13, last=True), complete=21)
        await target.shows({*later, *(f"b10.{n}" for n in range(12))})
    assert all(later & {*seen} in (later, set()) for seen in target.commits)


async def test_arrays_of_some_tables_are_shown_when_another_tables_array_completes_them(
    client: Client,
) -> None:
    target = Shown()
    async with following(client, target, "a", "b"):
        await publish_array(client, row("a", 10, 0))
        await publish_array(client, row("b", 10, 1))
        await asyncio.sleep(LONG_S)
        assert target.rows == []
        await publish_array(client, row("c", 10, 2, last=True), complete=11)
        await target.shows({"a10.0", "b10.1"})


async def test_a_table_joins_between_transactions(client: Client) -> None:
    """Its bootstrap takes what the follower is past, and leaves it what is open."""
    target = Shown()
    await publish(
        client, row("a", 10, 0), row("b", 10, 1, last=True), row("a", 20, 0), row("b", 20, 1)
    )
    book = await book_of(target, {"a": "s"})
    await book.write([CreateTable(table("b", staging=True))])
    run = BootstrapRun(
        "snap-1", 1, 0, 0, table("b", staging=True), source="s", marks={SEEN: Watermark()}
    )
    book.put(TableState("public", "b", Phase.LOADING, run=run, why="test"))
    await book.commit()
    running = Follower(book, client, Streams(), VerifyHold(), Counters(), every_table=True)
    tasks = [asyncio.create_task(running.run(asyncio.Event()))]
    await target.shows({"a10.0"})
    async with asyncio.timeout(PATIENCE_S):
        await Bootstrap(book, client, Streams(), "b", lambda *_: None).run()
    assert book.tables["b"].phase in {Phase.LOADED, Phase.FOLLOWING}
    assert {"a20.0", "b20.1"}.isdisjoint(target.rows)
    await publish(client, row("a", 20, 2, last=True))
    await target.shows({"a20.2"})
    tasks[0].cancel()
    await asyncio.wait(tasks)
    target.shown_once("a10.0", "b10.1", "a20.0", "b20.1", "a20.2")


async def test_what_is_held_is_shown_up_to_the_lsn_and_whole(client: Client) -> None:
    target = Shown()
    async with following(client, target, "a", "b", every=True) as mirror:
        mirror.hold.set(20, PATIENCE_S)
        await publish_array(client, row("a", 10, 0), row("a", 20, 0))
        await publish_array(
            client, row("b", 10, 1, last=True), row("b", 20, 1, last=True), complete=21
        )
        await target.shows({"a10.0", "b10.1"})
        await asyncio.sleep(LONG_S)
        target.shown_once("a10.0", "b10.1")
        mirror.hold.set(None, 0)
        await target.shows({"a20.0", "b20.1"})


async def test_a_new_table_is_not_shown_ahead_of_what_is_held(client: Client) -> None:
    target = Shown()
    async with following(client, target, "a", "b", every=True) as mirror:
        mirror.hold.set(20, PATIENCE_S)
        mirror.book.put(TableState("public", "n", Phase.WANTED))
        await copied(mirror.book, "n", 25, "n20.1")
        await publish_array(client, row("a", 10, 0), row("a", 20, 0))
        await publish_array(client, row("n", 20, 1, last=True), complete=31)
        await target.shows({"a10.0"})
        await asyncio.sleep(LONG_S)
        target.shown_once("a10.0")
        mirror.hold.set(None, 0)
        await target.shows({"a20.0", "n20.1"})
    target.shown_once("a10.0", "a20.0", "n20.1")
