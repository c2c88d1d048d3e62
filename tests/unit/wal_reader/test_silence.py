"""Which walsender is ended, and when: only this suite's own, and only one that nobody can need."""

from __future__ import annotations

import asyncio
import time
from typing import cast
from unittest import mock

import pytest

from headrace.bus.control import Confirm, Join, Restart
from headrace.postgres.connection import PostgresUnreachableError
from headrace.postgres.replication import ReplicationConnection
from headrace.postgres.replication_errors import SlotBusyError
from headrace.postgres.slot_reader import WAL_READER, SlotReader, application_name
from headrace.settings import load
from headrace.wal_reader.silence import (
    ANSWER_S,
    ASK_AFTER_S,
    FOREIGN_AWAY_S,
    PROBE_INTERVAL_S,
    STALE_S,
    Silence,
    StaleSlot,
)
from tests.support.reading import OUR_NAME, SLOT, SUITE, Source, Walsender
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({"HEADRACE_SLOT": SLOT})
OTHERS_NAME = application_name("fff")
PID = 100
JOIN = Join("publisher", "p1", 0, SUITE)
CONFIRM = Confirm("publisher", "p1", 1, 0, 0, True)


def as_connection(walsender: Walsender) -> ReplicationConnection:
    return cast("ReplicationConnection", walsender)


# A silent connection.


class Silent:
    """A connection that was heard last when it began."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.silence = Silence(SETTINGS)
        self.walsender = Walsender(source, PID)
        self.silence.begin(OUR_NAME)

    async def is_dead(self) -> bool:
        with mock.patch.object(ReplicationConnection, "open", self.source.open):
            try:
                await self.silence.check(as_connection(self.walsender))
            except PostgresUnreachableError:
                return True
        return False

    async def unanswered(self) -> None:
        """It is asked, and all that an answer may take passes."""
        await asyncio.sleep(ASK_AFTER_S + 0.1)
        assert self.silence.ask()
        await asyncio.sleep(ANSWER_S)


async def silent(reader: SlotReader | None) -> Silent:
    await asyncio.sleep(1000)
    source = Source()
    source.reader = reader
    return Silent(source)


@on_virtual_time
async def test_a_sign_of_life_is_asked_for_only_after_a_while_without_any() -> None:
    one = await silent(None)
    await asyncio.sleep(ASK_AFTER_S)
    assert not one.silence.ask()
    await asyncio.sleep(0.1)
    assert one.silence.ask()
    one.silence.heard()
    assert not one.silence.ask()


@on_virtual_time
async def test_a_new_connection_is_not_silent_because_the_last_one_was() -> None:
    one = await silent(SlotReader(PID, OUR_NAME, idle=True))
    await one.unanswered()
    one.silence.begin(OUR_NAME)
    assert not one.silence.ask()
    await asyncio.sleep(PROBE_INTERVAL_S)
    assert not await one.is_dead()


@on_virtual_time
async def test_an_idle_walsender_of_ours_that_does_not_answer_is_ended_with_its_connection() -> (
    None
):
    one = await silent(SlotReader(PID, OUR_NAME, idle=True))
    await one.unanswered()
    assert await one.is_dead()
    assert one.source.commands == [f"end {PID}"]
    assert all(connection.closed for connection in one.source.connections)


@on_virtual_time
async def test_an_answer_may_take_its_time_and_repeated_questions_do_not_extend_it() -> None:
    one = await silent(SlotReader(PID, OUR_NAME, idle=True))
    await asyncio.sleep(60)
    assert not await one.is_dead(), "it was never asked: this process may have been suspended"
    assert one.silence.ask()
    await asyncio.sleep(ANSWER_S - 0.1)
    assert one.silence.ask()
    assert not await one.is_dead()
    assert one.source.opened_at == []
    await asyncio.sleep(0.1)
    assert await one.is_dead()


@on_virtual_time
async def test_what_was_heard_meanwhile_is_an_answer() -> None:
    one = await silent(SlotReader(PID, OUR_NAME, idle=True))
    await one.unanswered()
    one.silence.heard()
    assert not await one.is_dead()


@pytest.mark.parametrize(
    "reader",
    [
        SlotReader(PID, OUR_NAME, idle=False),
        SlotReader(PID, OTHERS_NAME, idle=True),
        SlotReader(PID, "psql", idle=True),
    ],
    ids=["one that decodes", "another suite's with the same pid", "another program's"],
)
@on_virtual_time
async def test_no_walsender_is_ended_that_works_or_is_not_ours(reader: SlotReader) -> None:
    one = await silent(reader)
    await one.unanswered()
    assert not await one.is_dead()
    assert one.source.commands == []


@pytest.mark.parametrize("reader", [None, SlotReader(PID + 1, OUR_NAME, idle=True)])
@on_virtual_time
async def test_a_connection_whose_walsender_is_gone_is_dead_and_no_other_is_ended(
    reader: SlotReader | None,
) -> None:
    one = await silent(reader)
    await one.unanswered()
    assert await one.is_dead()
    assert one.source.commands == []


@on_virtual_time
async def test_a_walsender_that_works_is_looked_at_at_intervals() -> None:
    one = await silent(SlotReader(PID, OUR_NAME, idle=False))
    await one.unanswered()
    for _ in range(4):
        assert not await one.is_dead()
        await asyncio.sleep(PROBE_INTERVAL_S / 4)
    assert len(one.source.opened_at) == 1
    assert not await one.is_dead()
    assert len(one.source.opened_at) == 2


@on_virtual_time
async def test_a_server_that_can_not_be_asked_says_nothing_about_the_connection() -> None:
    one = await silent(SlotReader(PID, OUR_NAME, idle=True))
    await one.unanswered()
    one.source.refusals.append(PostgresUnreachableError("no answer"))
    assert not await one.is_dead()


# A slot that another connection reads.


class Slot:
    """A slot, and a wal-reader that wants to read it."""

    def __init__(self, reader: SlotReader | None) -> None:
        self.source = Source()
        self.source.reader = reader
        self.stale = StaleSlot(SETTINGS)
        self.stale.on_control(JOIN)

    async def is_free(self) -> bool:
        try:
            await self.stale.admit(as_connection(Walsender(self.source, PID)))
        except SlotBusyError:
            return False
        return True

    async def asked_for(self, seconds: float) -> None:
        """Confirmers ask for frames all the while, and so does the wal-reader for the slot."""
        until = time.monotonic() + seconds
        while time.monotonic() < until - 0.001:
            await asyncio.sleep(0.5)
            self.stale.on_control(JOIN)
            await self.is_free()


async def slot(reader: SlotReader | None) -> Slot:
    await asyncio.sleep(1000)
    return Slot(reader)


@on_virtual_time
async def test_a_reader_of_ours_that_nobody_follows_is_ended_after_a_while() -> None:
    one = await slot(SlotReader(PID, OUR_NAME))
    assert await one.is_free(), "PostgreSQL itself refuses the second reader"
    await one.asked_for(STALE_S - 0.5)
    assert one.source.commands == []
    await one.asked_for(0.5)
    assert one.source.commands == [f"end {PID}"]


@on_virtual_time
async def test_a_reader_that_feeds_a_confirmer_is_never_ended() -> None:
    one = await slot(SlotReader(PID, OUR_NAME))
    for _ in range(10):
        await one.asked_for(STALE_S - 1)
        one.stale.on_control(CONFIRM)
    assert one.source.commands == []


@on_virtual_time
async def test_a_reader_is_not_ended_for_confirmers_that_stopped_asking() -> None:
    one = await slot(SlotReader(PID, OUR_NAME))
    await one.is_free()
    await asyncio.sleep(STALE_S)
    await one.is_free()
    assert one.source.commands == []
    one.stale.on_control(Restart("publisher", "p1", 1, "lost", SUITE))
    await asyncio.sleep(STALE_S / 2)
    await one.is_free()
    assert one.source.commands == []
    one.stale.on_control(Restart("publisher", "p1", 1, "lost", SUITE))
    await asyncio.sleep(STALE_S / 2 - 0.1)
    await one.is_free()
    assert one.source.commands == [f"end {PID}"]


@on_virtual_time
async def test_each_reader_that_follows_an_ended_one_gets_the_whole_time() -> None:
    one = await slot(SlotReader(PID, OUR_NAME))
    await one.asked_for(STALE_S + 0.5)
    assert one.source.commands == [f"end {PID}"]
    for reader in (SlotReader(PID + 1, OUR_NAME), None, SlotReader(PID + 2, OUR_NAME)):
        one.source.reader = reader
        await one.asked_for(STALE_S - 1)
    assert one.source.commands == [f"end {PID}"]


@on_virtual_time
async def test_an_older_wal_reader_without_an_identity_is_left_to_postgresql() -> None:
    one = await slot(SlotReader(PID, WAL_READER))
    await one.asked_for(3 * STALE_S)
    assert await one.is_free()
    assert one.source.commands == []


@on_virtual_time
async def test_a_reader_that_this_suite_opened_under_an_earlier_identity_is_not_foreign() -> None:
    one = await slot(SlotReader(PID, OUR_NAME))
    one.stale.on_control(Join("publisher", "p2", 0, "def456"))
    assert one.stale.application == application_name("def456")
    assert await one.is_free()
    one.source.reader = SlotReader(PID, OTHERS_NAME)
    assert not await one.is_free()


@pytest.mark.parametrize("name", [OTHERS_NAME, "pg_recvlogical"])
@on_virtual_time
async def test_a_slot_that_others_read_is_taken_only_long_after_they_left(name: str) -> None:
    one = await slot(SlotReader(PID, name))
    for _ in range(10):
        assert not await one.is_free()
        await one.asked_for(20)
    one.source.reader = None
    await one.asked_for(FOREIGN_AWAY_S - 0.5)
    assert not await one.is_free(), "it may be restarting"
    await asyncio.sleep(0.6)
    assert await one.is_free()
    assert await one.is_free()
    assert one.source.commands == []


@on_virtual_time
async def test_a_slot_whose_foreign_reader_was_followed_by_ours_is_ours() -> None:
    one = await slot(SlotReader(PID, OTHERS_NAME))
    assert not await one.is_free()
    one.source.reader = SlotReader(PID, OUR_NAME)
    assert await one.is_free()
    one.source.reader = None
    assert await one.is_free()


@on_virtual_time
async def test_a_malformed_identity_changes_no_name() -> None:
    one = await slot(None)
    one.stale.on_control(Join("publisher", "p1", 0, "not hexadecimal"))
    assert one.stale.application == OUR_NAME
