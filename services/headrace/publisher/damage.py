"""Reports messages missing from the middle of the stream as gaps, each once; and notices within
seconds that messages or the stream itself are gone, also while nothing is published.

The slot delivers a lost tail again. Messages that other messages of the source follow can't be put
back: they are a gap from the message before the hole to the message after it (docs/adr/0026).
Reported holes are kept in the state bucket. Promises: requests only the stream's state from
nats-server while no message is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from headrace import log as logs
from headrace.contract.values import Encoding
from headrace.errors import HeadraceError
from headrace.jetstream.holes import Hole, known_holes, merged, within, without
from headrace.jetstream.publishing.errors import TailLostError
from headrace.jetstream.publishing.pipe import Pipe
from headrace.jetstream.publishing.stream_tail import StreamTail, Tail
from headrace.jetstream.state import Cell
from headrace.lsn import Gap, Position, format_lsn
from headrace.metrics.counters import Counters
from headrace.publisher.gaps import gap_event
from headrace.publisher.resume_point import ResumePoint
from headrace.timing.waits import heed_cancellation

log = logs.logger("publisher")

REASON = "stream_damaged"
LOOK_S = 5.0
# A server that has just started may answer before it has read its store: a loss is seen twice.
LOOK_AGAIN_S = 1.0


class StreamDamagedError(HeadraceError):
    """Messages are missing from the middle of the stream."""

    retry = True


@dataclass(frozen=True, slots=True)
class _HoleGap(Gap):
    """The gap that a hole is; `first_lost` is the first sequence of it."""

    first_lost: int


@dataclass(frozen=True, slots=True)
class _Report:
    """Holes, and where their gap events are: after one sequence, up to another."""

    holes: list[Hole]
    after: int
    up_to: int


@dataclass(eq=False)
class Damage:
    """The holes of one stream, as one source sees them."""

    _js: JetStreamContext
    _stream: str
    _tail: StreamTail
    _cell: Cell
    # The number of missing messages at the last check.
    _gone: int = 0
    # The stream as it was last seen.
    _created: str = ""
    _last_seq: int = 0
    # Why this run has to end.
    _loss: Exception | None = None

    async def report(
        self,
        place: ResumePoint,
        source: str,
        encoding: Encoding | None,
        pipe: Pipe,
        stats: Counters,
    ) -> None:
        """Publish the gaps not reported yet, then store them; no encoding: only store them."""
        # Holes that are known from the start don't spread: only more of them end this run.
        self._gone = place.tail.gone
        self._created = place.tail.created
        self._last_seq = place.tail.last_seq
        stored = await self._cell.read()
        if not (place.tail.gone or place.tail.holes or (stored or {}).get("reports")):
            return
        lost = merged([*place.tail.holes, *await known_holes(self._js, self._stream)])
        # Retention may have removed the front since the tail was read, and holes with it.
        first_seq = (await self._tail.state()).first_seq
        lost = within(lost, first_seq, place.tail.last_seq)
        reports = _decoded(stored, place.tail)
        valid = [
            report
            for report in _with_their_events(reports, lost, place.tail.last_seq)
            if report.holes[-1][1] >= first_seq
        ]
        new = without(lost, [hole for report in valid for hole in report.holes])
        if new:
            valid.append(await self._publish(new, place, source, encoding, pipe, stats))
        # Also without new ones: a report whose event is lost must not hide a later hole.
        if valid != reports:
            await self._cell.write(
                {"stream_created": place.tail.created, "reports": [asdict(one) for one in valid]}
            )

    async def _publish(
        self,
        holes: list[Hole],
        place: ResumePoint,
        source: str,
        encoding: Encoding | None,
        pipe: Pipe,
        stats: Counters,
    ) -> _Report:
        """Publish the gaps of these holes; returns the report to store, once all are stored."""
        after = place.tail.last_seq
        for gap in await self._gaps(holes, place):
            stats.count("gaps")
            _log(gap)
            event = gap_event(gap, source, encoding or Encoding.JSON, gap.first_lost)
            # An earlier run may have published it and crashed before it stored the hole.
            if event.msg_id in place.ids_after:
                after = min(after, place.progress.stream_seq)
            elif encoding is not None:
                await pipe.publish(event)
        # Stored after they are acknowledged: a crash in between publishes them again, with the same
        # ids.
        await pipe.drain()
        return _Report(holes, after, (await self._tail.state()).last_seq)

    async def _gaps(self, holes: Iterable[Hole], place: ResumePoint) -> list[_HoleGap]:
        """In order; holes with overlapping ranges are one gap."""
        reach = max(place.progress.stream_seq, place.tail.ours_seq)
        found: list[_HoleGap] = []
        for first, last in holes:
            if last >= reach:
                # No message of ours follows: if the hole was ours, the slot delivers it again.
                continue
            gap = await self._gap(first, last, reach, place)
            if gap.after >= gap.up_to:
                # Another source's messages are missing: nothing of ours fits between.
                continue
            if found and gap.after < found[-1].up_to:
                found[-1] = replace(found[-1], up_to=max(gap.up_to, found[-1].up_to))
            else:
                found.append(gap)
        return found

    async def _gap(self, first: int, last: int, reach: int, place: ResumePoint) -> _HoleGap:
        before = await self._tail.last_mark(place.tail.first_seq, first - 1)
        behind = await self._tail.first_settled(last + 1, reach)
        # From the last event that is certain on: the hole may have held any later one.
        if before is not None and before.position is not None:
            after = before.position.gap_lsn
        else:
            after = 0
        if behind is None or behind.position is None:
            up_to = max([place.position, *place.lanes.values()]).lsn + 1
        elif behind.lane is None:
            up_to = _begin(behind.position)
        else:
            # Earlier arrays may belong to other tables, in any order.
            up_to = behind.position.lsn + 1
        return _HoleGap(after, up_to, REASON, first)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look for losses every few seconds: a server finds missing messages when it restarts or
        reads a damaged file, and an idle pipe doesn't notice that its stream was replaced.
        """
        task = asyncio.create_task(self._watch(), name="damage")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _watch(self) -> None:
        while self._loss is None:
            await asyncio.sleep(LOOK_S)
            found = await self._look()
            # A request that was just timing out swallows it, and the run would never end.
            heed_cancellation()
            if found is not None:
                await asyncio.sleep(LOOK_AGAIN_S)
                self._loss = await self._look()

    async def _look(self) -> Exception | None:
        """Return an error if messages or the stream are gone."""
        try:
            now = await self._tail.state()
        except NotFoundError as error:
            return error
        except (NatsError, OSError):
            return None
        if self._created not in ("", now.created) or now.last_seq < self._last_seq:
            return TailLostError(f"{self._stream} was replaced, or lost its end")
        self._last_seq = now.last_seq
        if now.gone > self._gone:
            return StreamDamagedError(f"messages are missing from the middle of {self._stream}")
        # Retention removes holes together with the front.
        self._gone = now.gone
        return None

    def check(self) -> None:
        """Raise if anything is gone: the next follower delivers it again, or reports it."""
        if self._loss is not None:
            raise self._loss


def _begin(position: Position) -> int:
    """The LSN from which nothing is missing, if this is the first event after the hole."""
    if position.seq == 0:
        return position.lsn
    return position.lsn + 1


def _log(gap: _HoleGap) -> None:
    log.error(
        "gap",
        after=format_lsn(gap.after),
        up_to=format_lsn(gap.up_to),
        reason=gap.reason,
        stream_seq=gap.first_lost,
        remedy=(
            "bootstrap consumers that had not read these messages, or replay the archive; check "
            "the disk of nats-server"
        ),
    )


def _decoded(value: Mapping[str, Any] | None, tail: Tail) -> list[_Report]:
    """The holes that were reported in this stream."""
    if value is None or value.get("stream_created") != tail.created:
        return []
    found = [
        _Report(
            [(int(first), int(last)) for first, last in one["holes"]], one["after"], one["up_to"]
        )
        for one in value.get("reports", [])
    ]
    if "holes" in value:
        # An earlier version stored only up to where all events are, or not even that.
        end = value.get("reported_seq", 0)
        found = [_Report([(int(first), int(last)) for first, last in value["holes"]], end, end)]
    return found


def _with_their_events(
    reports: Iterable[_Report], lost: Sequence[Hole], last_seq: int
) -> list[_Report]:
    """The reports whose gap events are still in the stream: neither in a hole that came later, nor
    lost with the stream's tail.
    """
    found = []
    earlier: list[Hole] = []
    for report in reports:
        earlier = merged([*earlier, *report.holes])
        later = within(without(lost, earlier), report.after + 1, report.up_to)
        if report.up_to <= last_seq and not later:
            found.append(report)
    return found
