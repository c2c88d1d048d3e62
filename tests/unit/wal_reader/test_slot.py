"""Which slot is read: one that exists, is whole and speaks pgoutput."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from headrace.errors import HeadraceError
from headrace.postgres.replication import ReplicationConnection, SlotState
from headrace.postgres.replication_errors import (
    ReplicationRefusedError,
    SlotBusyError,
    SlotLostError,
    SlotMissingError,
    StandbyError,
)
from headrace.postgres.slot_reader import SlotReader
from headrace.settings import load
from headrace.wal_reader.silence import StaleSlot
from headrace.wal_reader.slot import prepared
from tests.support.reading import SLOT, START_LSN, Source, Walsender
from tests.support.virtual_time import on_virtual_time

WHOLE = SlotState(START_LSN, "pgoutput", "db", "reserved")
LOST = replace(WHOLE, wal_status="lost")


async def of(source: Source, **variables: str) -> SlotState:
    names = {f"HEADRACE_{name.upper()}": value for name, value in variables.items()}
    settings = load({"HEADRACE_SLOT": SLOT, **names})
    connection = cast("ReplicationConnection", Walsender(source, 1))
    return await prepared(connection, settings, StaleSlot(settings), "db")


def without_a_slot() -> Source:
    source = Source()
    source.slot = None
    return source


async def refused(source: Source, error: type[HeadraceError], **variables: str) -> None:
    with pytest.raises(error):
        await of(source, **variables)


@on_virtual_time
async def test_a_slot_that_is_whole_is_read_as_it_is() -> None:
    for status in ("reserved", "extended", "unreserved"):
        source = Source()
        source.slot = replace(WHOLE, wal_status=status)
        assert await of(source, recreate_slot="true") == source.slot
        assert source.commands == []


@on_virtual_time
async def test_a_missing_slot_is_created_where_the_settings_allow_it() -> None:
    for failover in (True, False):
        source = without_a_slot()
        made = await of(source, slot_failover=str(failover).lower())
        assert made == source.slot
        assert source.commands == [f"create {SLOT}, failover {failover}"]
    source = without_a_slot()
    await refused(source, SlotMissingError, create_slot="false")
    assert source.commands == []


@on_virtual_time
async def test_a_lost_slot_is_replaced_only_on_request() -> None:
    source = Source()
    source.slot = LOST
    await refused(source, SlotLostError)
    assert source.commands == []
    made = await of(source, recreate_slot="true")
    assert made == source.slot
    assert made.wal_status == "reserved"
    assert source.commands == [f"drop {SLOT}", f"create {SLOT}, failover False"]


@on_virtual_time
async def test_no_slot_is_read_or_made_on_a_standby_without_its_publication_or_of_others() -> None:
    standby = Source()
    standby.is_standby = True
    await refused(standby, StandbyError)
    unpublished = Source()
    unpublished.publications = {"another"}
    await refused(unpublished, ReplicationRefusedError)
    others = Source()
    others.reader = SlotReader(7, "pg_recvlogical")
    await refused(others, SlotBusyError)
    wal2json = Source()
    wal2json.slot = replace(WHOLE, plugin="wal2json")
    await refused(wal2json, ReplicationRefusedError)
    for source in (standby, unpublished, others, wal2json):
        assert source.commands == []


@on_virtual_time
async def test_a_slot_of_somebody_else_is_neither_read_nor_replaced() -> None:
    others = (
        ({"database": "shop"}, 'belongs to the database "shop"'),
        ({"plugin": "", "database": ""}, "physical"),
        ({"two_phase": True}, "two_phase"),
    )
    for difference, words in others:
        for status in ("reserved", "lost"):
            source = Source()
            source.slot = replace(WHOLE, wal_status=status, **difference)
            with pytest.raises(ReplicationRefusedError, match=words):
                await of(source, recreate_slot="true")
            assert source.commands == []
