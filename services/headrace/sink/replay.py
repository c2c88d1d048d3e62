"""Delivers parked records again, between two sessions of the stream.

Promises: once, if the sink promises exactly once. The mark of a replayed record is committed with
it; a process that dies before the record is removed finds the mark, and removes the record without
delivering it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace import log as logs
from headrace.consumer import Transaction, Watermark
from headrace.consumer.watermark import Watermarks
from headrace.process.failpoint import failpoint
from headrace.sinks.control import Control
from headrace.sinks.dead_letters import DeadLetterError, DeadLetters
from headrace.sinks.port import RefusedError, Sink
from headrace.sinks.reading import source_mark
from headrace.sinks.routing import Router, UnroutableError, event_id

log = logs.logger("sink")

_LANE = "replayed/"


@dataclass(slots=True)
class Replay:
    control: Control
    letters: DeadLetters
    router: Router
    sink: Sink

    async def run(self, name: str, ids: Sequence[str], marks: Watermarks) -> None:
        """Deliver the records one by one; one that is refused again stays parked."""
        for record_id in ids:
            lane = _LANE + record_id
            try:
                if lane not in marks and not await self._deliver(name, record_id, marks):
                    continue
                # After the commit: a crash in between finds the lane in the marks.
                await self.letters.drop(name, record_id)
                log.info("dead_letter_delivered", sink=name, id=record_id)
            except DeadLetterError:
                log.warning("dead_letter_missing", sink=name, id=record_id)
            except (RefusedError, UnroutableError) as error:
                # The session ends with this error, and the next one must not repeat it.
                await self._forget(record_id)
                log.warning("dead_letter_refused", sink=name, id=record_id, reason=error.reason)
                raise
            await self._forget(record_id)
            marks.pop(lane, None)

    async def _deliver(self, name: str, record_id: str, marks: Watermarks) -> bool:
        """Deliver and commit; False if the sink has not passed the record in the stream yet, so
        that it would come twice.
        """
        event = (await self.letters.get(name, record_id)).event
        is_copied = bool(event.payload.get("snapshot"))
        # It was parked by another process; the stream brings it to this one.
        if event.position > source_mark(marks, event.source) and not is_copied:
            return False
        # Without what is parked, and with changes that a later copy has as well.
        router = replace(self.router, parked=set(), copied={})
        routed = router.route(Transaction((event,), ends=True))
        marks[_LANE + record_id] = Watermark(event.position)
        if routed is not None:
            # Of an event with two records, the other one was delivered, unless none could be made.
            chosen = tuple(one for one in routed.records if record_id in {one.id, event_id(event)})
            await self.sink.write([replace(routed, records=chosen)] if chosen else [])
        await self.sink.commit(dict(marks))
        failpoint("sink.replayed")
        return True

    async def _forget(self, record_id: str) -> None:
        await self.control.change(
            lambda found: replace(
                found, replay=tuple(one for one in found.replay if one != record_id)
            )
        )
