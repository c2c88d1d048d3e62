"""The replication slot, ready to be read: checked, and created where the settings allow that."""

from __future__ import annotations

from headrace import log as logs
from headrace.postgres.connection import where
from headrace.postgres.replication import ReplicationConnection, SlotState
from headrace.postgres.replication_errors import (
    ReplicationRefusedError,
    SlotLostError,
    SlotMissingError,
    StandbyError,
)
from headrace.process.failpoint import failpoint
from headrace.settings import Settings
from headrace.wal_reader.silence import StaleSlot

log = logs.logger("wal-reader")


async def prepared(
    connection: ReplicationConnection, settings: Settings, stale: StaleSlot, database: str
) -> SlotState:
    """The slot of this database, created if it is missing; raises errors for problems that would
    appear later, or never.
    """
    source = settings.source
    # Each of these would fail later, less clearly, or never.
    if await connection.is_standby():
        raise StandbyError(f"PostgreSQL at {where(settings.postgres)} is a standby")
    if not await connection.has_publication(source.publication):
        raise ReplicationRefusedError(
            f'publication "{source.publication}" does not exist',
            remedy="Run `headrace init`, or CREATE PUBLICATION, or name another with --pub.",
        )
    # Before the slot is looked at: an invalidated one of another suite must not be replaced.
    await stale.admit(connection)
    slot = await connection.slot(source.slot)
    if slot is None:
        if not source.create_slot:
            raise SlotMissingError(f'replication slot "{source.slot}" does not exist')
        await connection.create_slot(source.slot, failover=source.failover)
        failpoint("wal_reader.after_slot_created")
        log.info("slot_created", slot=source.slot)
        slot = await connection.slot(source.slot)
    if slot is not None:
        # First: a slot of somebody else is never replaced.
        _check(slot, source.slot, database)
    # Nothing can be read from it any more, so replacing it loses nothing further.
    if slot is not None and slot.wal_status == "lost" and source.recreate_slot:
        slot = await _recreated(connection, settings)
    if slot is None or slot.wal_status == "lost":
        raise SlotLostError(
            f'replication slot "{source.slot}" was invalidated: WAL that it needs is gone'
        )
    return slot


def _check(slot: SlotState, name: str, database: str) -> None:
    """Raise if the slot isn't one that this suite can read."""
    # Another plugin's messages would be passed on unread, and fail only in the publisher.
    if slot.plugin != "pgoutput":
        what = f"belongs to the plugin {slot.plugin}" if slot.plugin else "is a physical one"
        remedy = "Name another slot with --slot."
    elif slot.database != database:
        what = f'belongs to the database "{slot.database}", not "{database}"'
        remedy = "Name another slot with --slot: slots of all databases share their names."
    elif slot.two_phase:
        # It would stop the stream at the first prepared transaction.
        what = "was created with two_phase, which Headrace doesn't read"
        remedy = (
            "Name another slot with --slot, or drop this one (pg_drop_replication_slot): "
            "wal-reader creates it without two_phase, and the publisher reports the gap."
        )
    else:
        return
    raise ReplicationRefusedError(f'replication slot "{name}" {what}', remedy=remedy)


async def _recreated(connection: ReplicationConnection, settings: Settings) -> SlotState | None:
    """Create a new slot to replace an invalidated one; the publisher reports the gap in
    between.
    """
    source = settings.source
    await connection.drop_slot(source.slot)
    failpoint("wal_reader.after_slot_dropped")
    await connection.create_slot(source.slot, failover=source.failover)
    log.error(
        "slot_recreated",
        slot=source.slot,
        remedy="a gap event on cdc._gap reports the loss: bootstrap consumers again",
    )
    return await connection.slot(source.slot)
