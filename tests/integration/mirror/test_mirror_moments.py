"""Readers of a mirror see one moment of the source, even while a table is copied again.

Streams are written by hand and read by the follower; copies are put into the target as a bootstrap
does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgpack
import pytest
from nats.aio.client import Client

from headrace.jetstream.provisioning import ensure
from headrace.mirror import Streams, follower
from headrace.mirror.bootstrap import Bootstrap
from headrace.mirror.mirror_state import STALE
from headrace.mirror.snapshots import SnapshotRefusedError
from headrace.mirror.table import Phase
from headrace.settings import StreamSettings
from headrace.testing.mirror_streams import (
    Body,
    Running,
    Shown,
    book_of,
    copied,
    following,
    gap,
    phase,
    publish,
    row,
    schema,
)

# Longer than an unhindered follower would take.
LONG_S = 1.0
BEFORE = {"a10.0", "b10.1"}


def transfer(lsn: int, *first: Body) -> list[Body]:
    """A transaction of both tables, behind what else it does."""
    seq = len(first)
    return [*first, row("a", lsn, seq), row("b", lsn, seq + 1, last=True)]


@contextlib.asynccontextmanager
async def at_first(client: Client, *, every: bool = False) -> AsyncIterator[tuple[Running, Shown]]:
    """A mirror of both tables after the first transfer, and its target."""
    target = Shown()
    async with following(client, target, "a", "b", every=every) as mirror:
        await publish(client, *transfer(10))
        await target.shows(BEFORE)
        yield mirror, target


async def test_readers_keep_one_moment_until_a_table_is_copied_again(client: Client) -> None:
    async with at_first(client, every=True) as (mirror, target):
        await publish(
            client, *transfer(20, schema("a", 20, resync=True)), *transfer(30), *transfer(40)
        )
        await phase(mirror.book, "a", Phase.WANTED)
        await asyncio.sleep(LONG_S)
        assert {*target.rows} == BEFORE
        await copied(mirror.book, "a", 35, "a10.0", "a20.1", "a30.0")
        await target.shows({"b40.1", "a40.0"})
        assert mirror.book.tables["a"].phase is Phase.FOLLOWING
    assert {*target.commits[0]} == BEFORE
    assert {"a20.1", "b20.2", "a30.0", "b30.1"} <= {*target.commits[1]}, (
        "from one moment to the next"
    )
    target.shown_once("a10.0", "a20.1", "a30.0", "a40.0", "b10.1", "b20.2", "b30.1", "b40.1")


async def test_a_transaction_is_not_shown_up_to_where_a_copy_became_necessary(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a part of it was written already, for its size."""
    monkeypatch.setattr(follower, "SPILL_EVENTS", 5)
    async with at_first(client, every=True) as (mirror, target):
        await publish(client, *(row("b", 20, n) for n in range(20)), schema("a", 20, resync=True))
        await publish(client, row("a", 20, 20), *(row("b", 20, n) for n in range(21, 30)))
        await phase(mirror.book, "a", Phase.WANTED)
        await copied(mirror.book, "a", 25, "a10.0", "a20.20")
        await publish(client, row("b", 20, 30, last=True))
        await asyncio.sleep(LONG_S)
        assert {*target.rows} == BEFORE
        await publish(client, *transfer(30))
        await target.shows({"a30.0", "a20.20", "b20.30"})
    assert all(
        {"b20.0", "a20.20"} & {*seen} in (set(), {"b20.0", "a20.20"}) for seen in target.commits
    )


async def test_a_second_table_to_copy_on_the_way_is_copied_before_any_is_shown(
    client: Client,
) -> None:
    target = Shown()
    async with following(client, target, "a", "b", "c", every=True) as mirror:
        await publish(client, *transfer(10), row("c", 12, 0, last=True))
        await target.shows({*BEFORE, "c12.0"})
        await publish(client, *transfer(20, schema("a", 20, resync=True)))
        await publish(
            client,
            *transfer(30, schema("b", 30, resync=True)),
            *transfer(40),
            row("c", 45, 0, last=True),
        )
        await phase(mirror.book, "a", Phase.WANTED)
        await copied(mirror.book, "a", 35, "a10.0", "a20.1", "a30.1")
        await phase(mirror.book, "b", Phase.WANTED)
        await asyncio.sleep(LONG_S)
        assert {*target.rows} == {*BEFORE, "c12.0"}
        await copied(mirror.book, "b", 42, "b10.1", "b20.2", "b30.2", "b40.1")
        await target.shows({"c45.0", "a40.0", "b40.1"})
    assert all({*seen} <= {*BEFORE, "c12.0"} for seen in target.commits[:-1])


async def test_the_mirror_goes_on_where_it_was_when_it_is_killed_on_the_way_to_the_next_moment(
    client: Client,
) -> None:
    async with at_first(client, every=True) as (mirror, target):
        await publish(client, *transfer(20, schema("a", 20, resync=True)), *transfer(30))
        await phase(mirror.book, "a", Phase.WANTED)
        await copied(mirror.book, "a", 35, "a10.0", "a20.1", "a30.0")
        await asyncio.sleep(LONG_S)
        assert {*target.rows} == BEFORE, "nothing says yet that all before 35 is here"
    async with following(client, target, "a", "b", every=True):
        await publish(client, *transfer(40))
        await target.shows({"a40.0", "b40.1"})
    target.shown_once("a10.0", "a20.1", "a30.0", "a40.0", "b10.1", "b20.2", "b30.1", "b40.1")


@pytest.mark.parametrize("every", [True, False], ids=["every_table", "some_tables"])
async def test_on_a_source_at_rest_what_its_publisher_wrote_down_says_that_all_is_there(
    client: Client, every: bool
) -> None:
    target = Shown()
    async with following(client, target, "a", "b", every=every) as mirror:
        await publish(client, *transfer(10), *transfer(20, schema("a", 20, resync=True)))
        last = await publish(client, row("c", 30, 0, last=True))
        await phase(mirror.book, "a", Phase.WANTED)
        await copied(mirror.book, "a", 35, "a10.0", "a20.1")
        bucket = await client.jetstream().key_value(StreamSettings().state)
        progress = {"confirmed_lsn": 34, "stream_seq": last}
        await bucket.put("progress.s", msgpack.packb(progress))
        await asyncio.sleep(LONG_S)
        assert {"a20.1", "b20.2"}.isdisjoint(target.rows)
        await bucket.put("progress.s", msgpack.packb({**progress, "confirmed_lsn": 35}))
        await target.shows({"a20.1", "b20.2"})


async def test_after_a_restart_another_tables_transaction_says_that_all_is_there(
    client: Client,
) -> None:
    """To a mirror of some tables that may not read what the publisher wrote down."""
    async with at_first(client) as (mirror, target):
        await publish(client, *transfer(20, schema("a", 20, resync=True)))
        await phase(mirror.book, "a", Phase.WANTED)
        await copied(mirror.book, "a", 35, "a10.0", "a20.1")
        await publish(client, row("c", 40, 0, last=True))
        await target.shows({"a20.1", "b20.2"})
        async with mirror.book.lock:
            mirror.book.want("public", "a", "a row was missing")
            await mirror.book.commit()
    async with following(client, target, "a", "b") as mirror:
        await copied(mirror.book, "a", 45, "a10.0", "a20.1", "a44.0")
        await publish(client, row("c", 50, 0, last=True))
        await target.shows({"a44.0"})


async def test_what_a_gap_concerns_is_shown_again_all_at_once(client: Client) -> None:
    """No table is correct any more: the follower continues, unseen."""
    target = Shown()
    async with following(client, target, "a", "b", every=True) as mirror:
        await publish(client, *transfer(10), row("a", 20, 0), gap(0x30))
        await phase(mirror.book, "b", Phase.WANTED)
        await publish(client, *transfer(0x40), *transfer(0x50))
        await copied(mirror.book, "a", 0x55, "a10.0", "a64.0", "a80.0")
        await publish(client, *transfer(0x60))
        await asyncio.sleep(LONG_S)
        assert {*target.rows} <= BEFORE
        await copied(mirror.book, "b", 0x65, "b96.1")
        await publish(client, *transfer(0x70))
        await target.shows({"a64.0", "a96.0", "a112.0", "b96.1", "b112.1"})
    assert "a20.0" not in target.rows
    assert all(("a64.0" in seen) == ("b96.1" in seen) for seen in target.commits)


async def test_where_a_source_diverged_its_tables_are_copied_once_and_the_others_go_on(
    client: Client,
) -> None:
    """LSNs don't say that the copy is of after the gap, and nothing more comes of this source."""
    target = Shown()
    async with following(client, target, "a", "b", every=True, sources={"b": "t"}) as mirror:
        await publish(client, row("a", 0x70, 0, last=True), row("b", 5, 0, last=True, source="t"))
        await target.shows({"a112.0", "b5.0"})
        await publish(
            client, gap(0x30, reason="source_diverged"), row("b", 6, 0, last=True, source="t")
        )
        await phase(mirror.book, "a", Phase.WANTED)
        await copied(mirror.book, "a", 0x90, "a16.0")
        await target.shows({"a16.0", "b6.0"})
    target.shown_once("a16.0", "b5.0", "b6.0")
    assert all(("a16.0" in seen) == ("b6.0" in seen) for seen in target.commits)


async def test_in_another_stream_a_mirror_waits_for_no_gap_of_the_last_one(client: Client) -> None:
    target = Shown()
    async with following(client, target, "a", "b", every=True, sources={"b": "t"}) as mirror:
        await publish(client, row("a", 0x70, 0, last=True), row("b", 5, 0, last=True, source="t"))
        await target.shows({"a112.0", "b5.0"})
        await publish(
            client, row("b", 6, 0, last=True, source="t"), gap(0x30, reason="source_diverged")
        )
        await phase(mirror.book, "a", Phase.WANTED)
    book = await book_of(target, {})
    book.begin_at(0)
    await book.commit()
    await client.jetstream().delete_stream("CDC")
    await ensure(client.jetstream(), StreamSettings())
    async with following(client, target, "a", "b", every=True, sources={"b": "t"}) as mirror:
        await copied(mirror.book, "a", 0x90, "a16.0")
        await copied(mirror.book, "b", 6, "b5.0", source="t")
        await publish(client, row("a", 0x95, 0, last=True), row("b", 7, 0, last=True, source="t"))
        await target.shows({"a16.0", "b5.0", "b7.0", "a149.0"})


async def test_a_renamed_table_is_there_under_one_of_its_names_at_every_moment(
    client: Client,
) -> None:
    async with at_first(client, every=True) as (mirror, target):
        gone = schema("a", 20, changes=[{"change": "table_renamed", "to": "public.z"}], columns=[])
        await publish(client, gone, row("z", 20, 1, last=True), row("b", 30, 0, last=True))
        await phase(mirror.book, "z", Phase.WANTED)
        await asyncio.sleep(LONG_S)
        assert {*target.tables} == {"a", "b"}
        await copied(mirror.book, "z", 25, "a10.0", "z20.1")
        await target.shows({"z20.1", "b30.0"})
    assert {*target.tables} == {"b", "z"}
    assert all(("a" in seen) != ("z" in seen) for seen in target.shown)


async def test_a_table_that_the_source_no_longer_has_does_not_keep_the_others(
    client: Client,
) -> None:
    target = Shown()
    async with following(client, target, "a", "b", every=True) as mirror:
        await publish(client, *transfer(10), *transfer(20, schema("a", 20, resync=True)))
        await phase(mirror.book, "a", Phase.WANTED)
        bootstrap = Bootstrap(mirror.book, client, Streams(), "a", lambda *_: None)
        bootstrap._asked_seq = 5
        await bootstrap._refused(SnapshotRefusedError("it was dropped"))
        await publish(client, row("b", 30, 0, last=True))
        await target.shows({"b20.2", "b30.0"})
    assert {*target.tables} == {"b"}


async def test_who_wants_fresh_tables_reads_in_the_mirror_which_are_older(client: Client) -> None:
    target = Shown()
    async with following(client, target, "a", "b", every=True, fresh=True) as mirror:
        await publish(
            client, *transfer(10), *transfer(20, schema("a", 20, resync=True)), *transfer(30)
        )
        await target.shows({"b30.1"})
        assert {"a20.1", "a30.0"}.isdisjoint(target.rows)
        (stale,) = target.tables[STALE.name]
        assert [stale["schema_name"], stale["table_name"], stale["lsn"]] == ["public", "a", "0/14"]
        await copied(mirror.book, "a", 35, "a10.0", "a20.1", "a30.0")
        await publish(client, *transfer(40))
        await target.shows({"a40.0", "a20.1"})
        assert target.tables[STALE.name] == []


async def test_a_new_table_keeps_nobody_and_appears_where_the_others_are(client: Client) -> None:
    target = Shown()
    async with following(client, target, "a", "b", every=True) as mirror:
        await publish(client, *transfer(10), row("n", 20, 0, last=True), *transfer(30))
        await target.shows({"a30.0", "b30.1"})
        assert mirror.book.tables["n"].phase is Phase.WANTED
        await copied(mirror.book, "n", 45, "n20.0", "n44.0")
        await publish(client, row("a", 42, 0, last=True))
        await target.shows({"a42.0"})
        assert "n" not in target.tables
        await publish(client, row("a", 50, 0, last=True))
        await target.shows({"n44.0", "a50.0"})
