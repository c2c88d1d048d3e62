"""`headrace teardown`: removes what `headrace init` created, the slot first, because it retains
WAL.

Promises: asks before it removes anything; ends only this suite's reader; leaves a publication,
stream or bucket that others created, and the archive's files; reports what it removed and what it
left.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import asyncpg
import typer
from nats.js.errors import NotFoundError

from headrace.bus import participation, subjects
from headrace.cli.session import Screen, kind_and_name, nats, postgres, suite_of
from headrace.cli.setup.init import PUBLICATION_MARK
from headrace.errors import HeadraceError
from headrace.jetstream.connection import NatsUnreachableError, shown
from headrace.jetstream.provisioning import declared
from headrace.postgres import ddl_trigger, slot_reader
from headrace.postgres.connection import where
from headrace.postgres.quoting import quote_name
from headrace.postgres.slot_reader import SlotReader
from headrace.settings import Settings

_DENIED_REMEDY = "Run it as the role that created them, or as a superuser."

# Longer than a service's stop may take by default.
_STOP_S = 12.0
_DROP_S = 5.0
_POLL_S = 0.1
_OUR_STREAM = "Headrace: "

_SLOT = "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1"
_PUBLICATION = (
    "SELECT obj_description(oid, 'pg_publication') AS mark FROM pg_publication WHERE pubname = $1"
)


@dataclass(frozen=True, slots=True)
class TeardownPlan:
    """The existing objects, and those to remove."""

    slot: bool
    reader: int | None
    publication: bool
    foreign_publication: bool
    streams: tuple[str, ...]
    foreign_streams: tuple[str, ...]

    @property
    def empty(self) -> bool:
        return not (self.slot or self.publication or self.streams)


async def run(
    settings: Settings, *, yes: bool, streams: bool, with_ddl_trigger: bool = False
) -> None:
    """Show what will be removed, ask, remove."""
    screen = Screen()
    async with postgres(settings, "teardown", _DENIED_REMEDY) as session:
        # Everything is looked up before anything is removed: an error leaves the suite whole.
        plan = await _plan(session, settings, streams=streams)
        if not plan.empty and not yes:
            _ask(settings, plan)
        screen.title(f"PostgreSQL {where(settings.postgres)}")
        if plan.reader is not None:
            await _stop_suite(session, settings, plan.reader)
            screen.made("reader", f"process {plan.reader}", "stopped")
        await _drop_slot(session, settings, screen, there=plan.slot)
        await _drop_publication(session, settings, screen, plan)
        if with_ddl_trigger:
            await session.execute(ddl_trigger.REMOVE)
            screen.made("event trigger", "headrace_ddl", "dropped")
    if streams:
        await _delete_streams(settings, screen, plan)
    if settings.archive.url:
        screen.title(f"Archive {settings.archive.url}")
        screen.kept(
            "files",
            "all",
            "left: remove them yourself; a new slot reports a gap there, or needs a new location",
        )


async def _plan(session: asyncpg.Connection, settings: Settings, *, streams: bool) -> TeardownPlan:
    slot = await session.fetchval(_SLOT, settings.source.slot)
    publication = await session.fetchrow(_PUBLICATION, settings.source.publication)
    ours = publication is not None and publication["mark"] == PUBLICATION_MARK
    reader = await _own_reader(session, settings)
    if streams:
        found, foreign = await _streams(settings)
    else:
        found, foreign = ((), ())
    return TeardownPlan(
        bool(slot), reader, ours, publication is not None and not ours, found, foreign
    )


async def _own_reader(session: asyncpg.Connection, settings: Settings) -> int | None:
    """The process that reads the slot; raises if it isn't this suite's."""
    row = await session.fetchrow(f"{slot_reader.QUERY}$1", settings.source.slot)
    if row is None:
        return None
    reader = SlotReader.of(row)
    suite = await suite_of(settings, "teardown")
    # Without NATS the identity is unknown, and any suite's reader may be this one's.
    if not reader.is_suite or (suite is not None and reader.is_foreign(suite)):
        raise HeadraceError(
            f"replication slot {settings.source.slot} is being read by {reader}",
            remedy="It isn't this suite's: stop it yourself first.",
        )
    return reader.pid


async def _streams(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ours: list[str] = []
    foreign: list[str] = []
    async with nats(settings, "teardown") as (client, _):
        for config in declared(settings.streams):
            try:
                info = await client.jetstream().stream_info(str(config.name))
            except NotFoundError:
                continue
            mine = (info.config.description or "").startswith(_OUR_STREAM)
            (ours if mine else foreign).append(str(config.name))
    return tuple(ours), tuple(foreign)


def _ask(settings: Settings, plan: TeardownPlan) -> None:
    parts = []
    if plan.reader is not None:
        parts.append("stops the running suite")
    if plan.slot:
        parts.append(
            f"drops replication slot {settings.source.slot} (its place in the WAL is lost)"
        )
    if plan.publication:
        parts.append(f"drops publication {settings.source.publication}")
    if plan.streams:
        parts.append(f"deletes {', '.join(plan.streams)} with everything in them")
    question = f"This {'; '.join(parts)}. Continue?"
    # A script has nobody to answer.
    if not sys.stdin.isatty():
        raise HeadraceError(
            question.removesuffix(" Continue?").removesuffix("."), remedy="Confirm with --yes."
        )
    typer.confirm(question, abort=True)


async def _stop_suite(session: asyncpg.Connection, settings: Settings, reader: int) -> None:
    """Stop the suite in order over the bus; a reader that doesn't hear it is ended, which loses
    nothing confirmed.
    """
    try:
        async with nats(settings, "teardown") as (client, _):
            await client.publish(
                subjects.stop(settings.source.slot),
                participation.stop_command(settings.source.slot, settings.process.shutdown_token),
            )
            await client.flush()
        if await _released(session, settings.source.slot, _STOP_S):
            return
    except NatsUnreachableError:
        # Without the bus there is only the connection itself.
        pass
    # The slot keeps its position: what was not confirmed would come again.
    await session.fetchval("SELECT pg_terminate_backend($1)", reader)
    if not await _released(session, settings.source.slot, _DROP_S):
        raise HeadraceError(
            f"another process took replication slot {settings.source.slot} immediately",
            remedy="Stop wal-reader where it runs, then try again.",
        )


async def _released(session: asyncpg.Connection, slot: str, within_s: float) -> bool:
    """Whether no process reads the slot any more; PostgreSQL reports that only on request."""
    for _ in range(int(within_s / _POLL_S)):
        if not await session.fetchval(
            "SELECT active FROM pg_replication_slots WHERE slot_name = $1", slot
        ):
            return True
        await asyncio.sleep(_POLL_S)
    return False


async def _drop_slot(
    session: asyncpg.Connection, settings: Settings, screen: Screen, *, there: bool
) -> None:
    slot = settings.source.slot
    if not there:
        screen.kept("slot", slot, "did not exist")
        return
    await session.fetchval("SELECT pg_drop_replication_slot($1)", slot)
    screen.made("slot", slot, "dropped")


async def _drop_publication(
    session: asyncpg.Connection, settings: Settings, screen: Screen, plan: TeardownPlan
) -> None:
    name = settings.source.publication
    if plan.publication:
        await session.execute(f"DROP PUBLICATION {quote_name(name)}")
        screen.made("publication", name, "dropped")
    elif plan.foreign_publication:
        screen.kept("publication", name, "left: headrace init did not create it")
    else:
        screen.kept("publication", name, "did not exist")


async def _delete_streams(settings: Settings, screen: Screen, plan: TeardownPlan) -> None:
    screen.title(f"NATS {shown(settings.nats)}")
    async with nats(settings, "teardown") as (client, _):
        for name in plan.streams:
            await client.jetstream().delete_stream(name)
            screen.made(*kind_and_name(name), "deleted")
    for name in plan.foreign_streams:
        screen.kept(*kind_and_name(name), "left: headrace did not create it")
