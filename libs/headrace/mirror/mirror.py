"""A mirror: bootstraps tables, follows the stream, and resumes where it was after any failure.

Promises: position and rows are written in one transaction of the target, so that a crash at any
moment neither loses nor repeats anything; it waits while a problem may be temporary (a server that
is unavailable); any other ends in one error with the remedy.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from headrace import log as logs
from headrace.consumer import RetentionGapError, StreamMissingError
from headrace.consumer.behind import behind
from headrace.contract.subjects_and_ids import split_table_token, table_token
from headrace.errors import HeadraceError, describe, leaves
from headrace.metrics.counters import Counters
from headrace.mirror.bootstrap import Bootstrap, Streams
from headrace.mirror.follower import Follower
from headrace.mirror.mirror_state import Book
from headrace.mirror.published import Published
from headrace.mirror.scope import EVERYTHING, MirrorScope
from headrace.mirror.table import NEW, Phase
from headrace.mirror.target import DropTable, RowMissingError, Target, TargetError
from headrace.mirror.verify_hold import VerifyHold
from headrace.timing.backoff import Backoff
from headrace.timing.waits import heed_cancellation, wait_for

log = logs.logger("mirror")

BOOTSTRAPS_MAX = 4
PAUSE_S = 0.2
PAUSE_S_MAX = 5.0
# A life as long as this was no failed start.
LIVED_S = 30.0
# A table without rows may never be in the stream.
DISCOVER_S = 5.0

TableName = tuple[str, str]


@dataclass(slots=True)
class BootstrapProgress:
    """How far a table's bootstrap is: rows, and how many there will be (0: not known)."""

    rows: int = 0
    rows_estimated: int = 0
    rows_loaded: int = 0
    began: float = field(default_factory=time.monotonic)


class Mirror:
    """Keeps tables of a target in sync with their source.

    `client` is connected to NATS, and `target` is the database to write. `tables` are pairs of
    schema and name; if there are none, the mirror contains every table that the source publishes
    and `scope` takes, including later ones. While a table that readers see is copied again, all
    tables stay at one moment; with `fresh`, the others continue.
    """

    def __init__(
        self,
        client: Client,
        target: Target,
        tables: tuple[TableName, ...] = (),
        streams: Streams | None = None,
        *,
        fresh: bool = False,
        scope: MirrorScope = EVERYTHING,
    ) -> None:
        self._client = client
        self._tables = tables
        self._scope = scope
        self._streams = streams or Streams()
        self._published = Published(client, self._streams.schemas)
        self._hold = VerifyHold()
        self.book = Book(target, fresh=fresh, rules=scope.rules)
        # Counters and measurements, under the keys of the catalogue of metrics.
        self.stats = Counters()
        # The bootstraps that are running, by the token of their table.
        self.progress: dict[str, BootstrapProgress] = {}
        self._broken: set[TableName] = set()
        self._fell_behind = False
        self._has_begun = False
        self._stood_since = 0.0
        self._running: dict[str, asyncio.Task[None]] = {}
        # The reason why it makes no progress, if known; empty while it does.
        self.trouble = ""
        # The blocked part: the target or the stream.
        self.trouble_with = ""

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until the event is set.

        Waits and tries again while a server is unavailable. Any other problem raises an error that
        names the remedy, for example `TakenOverError` if another mirror writes to the target.
        """
        backoff = Backoff(PAUSE_S, PAUSE_S_MAX)
        while not stopping.is_set():
            began = time.monotonic()
            try:
                await self._live(stopping)
            except BaseExceptionGroup as group:
                self._mend(group)
            except (HeadraceError, NatsError, OSError) as error:
                self._mend(BaseExceptionGroup("", [error]))
            if not stopping.is_set():
                # It had worked: this failure is the first of its kind.
                if time.monotonic() - began > LIVED_S:
                    backoff.reset()
                await wait_for(stopping, backoff.pause_s())

    def _mend(self, group: BaseExceptionGroup[Any]) -> None:
        """Handle errors that can be repaired or waited for; raise any other."""
        errors = list(leaves(group))
        # All of them: a missing row must be noted even if the server went away at the same time.
        for error in errors:
            if isinstance(error, RowMissingError):
                log.error("row_missing", table=error.table.token, reason=str(error))
                self.stats.count("mirror_mismatches")
                self._broken.add((error.table.schema, error.table.name))
            elif isinstance(error, RetentionGapError):
                log.warning("fallen_behind", reason=str(error))
                self.stats.count("mirror_retention_gaps")
                self._fell_behind = True
            elif not _passes(error):
                raise error
            else:
                self.trouble = describe(error)
                if isinstance(error, TargetError):
                    self.trouble_with = "target"
                else:
                    self.trouble_with = "stream"
                log.warning("mirror_waits", error=type(error).__name__, reason=self.trouble)

    async def _live(self, stopping: asyncio.Event) -> None:
        """From opening the target to the first problem, or the end."""
        await self.book.open()
        await self._begin()
        self.trouble = ""
        follower = Follower(
            self.book,
            self._client,
            self._streams,
            self._hold,
            self.stats,
            every_table=not self._tables,
            scope=self._scope,
        )
        # One group: if the follower or a bootstrap fails, the others end before the target is
        # opened again.
        async with (
            self._hold.served(self._client, self.book.identity),
            asyncio.TaskGroup() as tasks,
        ):
            others = [tasks.create_task(self._bootstraps(tasks), name="bootstraps")]
            if not self._tables:
                others.append(tasks.create_task(self._discover(), name="discover"))
            # It returns only at a stop; everything else is an error.
            await follower.run(stopping)
            for task in (*others, *self._running.values()):
                task.cancel()

    async def _begin(self) -> None:
        """Act on what the last run found: repairs, unknown tables and, the first time, a position
        in the stream.
        """
        # The stream has lost events that the tables need, or nothing was ever read. Every table is
        # copied, and the copies need only what follows.
        if self._fell_behind or not self.book.lanes:
            self.book.begin_at(await self._last_seq())
        # Noted in the target, so that a crash before the copy doesn't forget it.
        for schema, name in self._broken:
            self.book.want(schema, name, "a row was missing")
        for schema, name in self._tables or await self._found(self._is_wanted):
            known = self.book.tables.get(table_token(schema, name))
            if known is None or known.phase is Phase.GONE:
                self.book.want(schema, name, NEW if self._tables and known is None else "published")
        if not self._has_begun:
            # An operator who restarts the mirror may have repaired the target.
            for token, reason in self.parked.items():
                self.book.want(*split_table_token(token), f"parked: {reason}")
            await self._follow_rules()
        await self.book.commit()
        self._fell_behind = False
        self._broken = set()
        self._has_begun = True

    async def _follow_rules(self) -> None:
        """Copy tables again whose rules have changed."""
        for state in list(self.book.tables.values()):
            rules = self._scope.rules.of(state.schema, state.name)
            if state.phase is not Phase.GONE and state.rules != rules:
                # The name of its next copy may be another one, too.
                await self.book.write([DropTable(state.run.staged)] if state.run else [])
                self.book.want(state.schema, state.name, "the rules of the copy have changed")

    async def _last_seq(self) -> int:
        try:
            return int(
                (await self._client.jetstream().stream_info(self._streams.cdc)).state.last_seq
            )
        except NotFoundError as error:
            raise StreamMissingError(f"stream {self._streams.cdc} does not exist") from error

    def _is_wanted(self, token: str) -> bool:
        known = self.book.tables.get(token)
        return self._takes_token(token) and (known is None or known.phase is Phase.GONE)

    def _takes_token(self, token: str) -> bool:
        return self._scope.takes(*split_table_token(token))

    def _is_new(self, token: str) -> bool:
        return token not in self.book.tables and self._takes_token(token)

    async def copy_again(self) -> None:
        """Note in the target that every table is to be copied again; only while `run` isn't."""
        await self.book.open()
        async with self.book.held():
            self.book.begin_at(await self._last_seq())
            await self.book.commit()

    async def _found(self, asked: Callable[[str], bool]) -> list[TableName]:
        return [split_table_token(token) for token in await self._published.tokens(asked)]

    async def _discover(self) -> None:
        """Add tables that were not published yet when this run started."""
        while True:
            heed_cancellation()
            await asyncio.sleep(DISCOVER_S)
            # The follower reports a server that is unavailable, and the search is repeated anyway.
            with contextlib.suppress(NatsError, TimeoutError):
                if found := await self._found(self._is_new):
                    await self._take_up(found)

    async def _take_up(self, found: Sequence[TableName]) -> None:
        async with self.book.held():
            for schema, name in found:
                # The follower may have met it in the stream while the list was read.
                if table_token(schema, name) not in self.book.tables:
                    self.book.want(schema, name, "published")
            await self.book.commit()

    async def _bootstraps(self, tasks: asyncio.TaskGroup) -> None:
        """Start a bootstrap for each table that needs one, a few at a time."""
        room = asyncio.Semaphore(BOOTSTRAPS_MAX)
        while True:
            # Before the tables are examined: news that arrive in the meantime must not be lost.
            self.book.news.clear()
            self._running = {
                token: task for token, task in self._running.items() if not task.done()
            }
            for token, state in self.book.tables.items():
                # A table in LOADING was interrupted: its copy continues.
                if state.phase in {Phase.WANTED, Phase.LOADING} and token not in self._running:
                    work = self._bootstrap(token, room)
                    self._running[token] = tasks.create_task(work, name=f"bootstrap-{token}")
            await self.book.news.wait()

    async def _bootstrap(self, token: str, room: asyncio.Semaphore) -> None:
        async with room:
            state = self.book.tables.get(token)
            # Its first mention was rolled back while this waited for its turn.
            if state is None:
                return
            progress = BootstrapProgress(rows_loaded=state.run.rows if state.run else 0)
            self.progress[token] = progress

            def tell(rows: int, rows_estimated: int) -> None:
                progress.rows = rows
                progress.rows_estimated = rows_estimated
                state = self.book.tables.get(token)
                is_loading = state is not None and state.phase is Phase.LOADING
                # The first report after an interruption may be lower than what was loaded before.
                if is_loading and rows >= progress.rows_loaded:
                    self.stats.count("mirror_rows", rows - progress.rows_loaded)
                # Another run copies at the source.
                progress.rows_loaded = rows if is_loading else 0

            try:
                await Bootstrap(self.book, self._client, self._streams, token, tell).run()
                self.stats.count("mirror_bootstraps")
            finally:
                self.progress.pop(token, None)
                # Not immediately: until this task has returned, it counts as running, and its table
                # would not get another one.
                asyncio.get_running_loop().call_soon(self.book.news.set)

    async def look(self) -> None:
        """Measure how far the mirror is behind the stream, and update `stats`.

        Works even while the target is unavailable.
        """
        following = len(self.following)
        unfollowed = len(self.unfollowed)
        self.stats.set("mirror_tables", following)
        self.stats.set("mirror_unfollowed", unfollowed)
        self.stats.set("mirror_bootstrapping", len(self.progress))
        self.stats.set("mirror_parked", len(self.parked))
        self.stats.set("mirror_waiting", max(0, unfollowed - len(self.progress)))
        standing = bool(self.awaited)
        if standing:
            self._stood_since = self._stood_since or time.monotonic()
        else:
            self._stood_since = 0.0
        if standing:
            self.stats.set(
                "mirror_standing_seconds", round(time.monotonic() - self._stood_since, 1)
            )
        else:
            self.stats.set("mirror_standing_seconds", 0.0)
        if self.book.lanes and self._client.is_connected:
            # Only a figure: the follower reports a stream that does not answer.
            with contextlib.suppress(NatsError, OSError):
                found = await behind(
                    self._client.jetstream(), self._streams.cdc, self.book.seen_seq
                )
                self.stats.set("mirror_behind_messages", found.messages)
                self.stats.set("mirror_behind_seconds", found.age_s)

    @property
    def unfollowed(self) -> list[str]:
        """The tokens of the tables whose bootstrap has not ended."""
        waiting = {Phase.WANTED, Phase.LOADING, Phase.LOADED}
        return [token for token, state in self.book.tables.items() if state.phase in waiting]

    @property
    def parked(self) -> dict[str, str]:
        """The reason for each table that the target refused, by token."""
        return {
            token: state.why
            for token, state in self.book.tables.items()
            if state.phase is Phase.PARKED
        }

    @property
    def awaited(self) -> str:
        """Why readers stay at one moment, naming the tables; empty if they don't."""
        if not self.book.is_moving or not self.book.awaited:
            return ""
        about = (
            (
                f"{state.schema}.{state.name} "
                f"({'catching up' if state.phase is Phase.LOADED else 'being copied'})"
            )
            for state in self.book.awaited
        )
        return (
            "readers stay at one moment until these tables are copied again: "
            f"{', '.join(sorted(about))}"
        )

    @property
    def following(self) -> list[str]:
        """The tokens of the tables whose bootstrap has ended."""
        return [
            token for token, state in self.book.tables.items() if state.phase is Phase.FOLLOWING
        ]

    @property
    def is_whole(self) -> bool:
        """Whether every table of the source is followed."""
        states = self.book.tables.values()
        settled = {Phase.FOLLOWING, Phase.GONE, Phase.PARKED}
        return bool(states) and all(state.phase in settled for state in states)


def _passes(error: BaseException) -> bool:
    if isinstance(error, HeadraceError):
        return error.retry or isinstance(error, StreamMissingError)
    return isinstance(error, NatsError | APIError | OSError | TimeoutError)
