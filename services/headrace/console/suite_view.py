"""The suite as a whole: telemetry's status, read twice a second, and its past.

Telemetry watches the slot, the streams and the services already, so the console needs no right to
do so. When telemetry or a server is away, answers name it, and since when.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.console import overview
from headrace.console.access import Caller
from headrace.console.cells import Redaction
from headrace.console.last_known import LastKnown, stamp
from headrace.console.liveness import NO_REPORT, SILENT, judged, silent
from headrace.console.reasons import status_for
from headrace.console.sink_lsns import SinkLsns
from headrace.console.waterline import LogEnds, waterline
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.suite.status import fetch, telemetry_address

INTERVAL_S = 0.5
# Of telemetry, which is near and has its answer ready.
TIMEOUT_S = 1.5
SAMPLE_S = 1.0
# A quarter of an hour.
SAMPLES_MAX = 900
_RATE_SAMPLES = 5


class SuiteView:
    def __init__(self, settings: Settings, redaction: Redaction, sink_lsns: SinkLsns) -> None:
        self._settings = settings
        self._redaction = redaction
        self._sink_lsns = sink_lsns
        base = telemetry_address(settings)
        self._known: LastKnown[dict[str, Any]] = LastKnown(
            "telemetry", lambda: fetch(base), INTERVAL_S / 2, TIMEOUT_S
        )
        self._status: dict[str, Any] | None = None
        # The last report of each service that does not report any more.
        self._heard_last: dict[str, str] = {}
        self._ends = LogEnds()
        self._sampled_at = 0.0
        self._samples: deque[dict[str, float | None]] = deque(maxlen=SAMPLES_MAX)
        # The publisher's counts by table and operation, at each of the last samples.
        self._tables: deque[tuple[float, Mapping[str, dict[str, int]]]] = deque(
            maxlen=_RATE_SAMPLES
        )
        self.nats_reason = "not connected yet"
        self._nats_since: str | None = None
        self._postgres_since: str | None = None
        # The pause, as the console read it; `pausing` fills it in.
        self.paused: dict[str, Any] | None = None
        self.news = asyncio.Event()

    async def run(self, scope: Scope) -> None:
        while not scope.stopping.is_set():
            before = [one["part"] for one in self.stale()]
            self._judge(await self._known.current())
            self._take(time.time())
            if before != [one["part"] for one in self.stale()]:
                self.news.set()
                self.news.clear()
            await scope.pause(INTERVAL_S)

    @property
    def status(self) -> Mapping[str, Any] | None:
        return self._status

    def status_for(self, caller: Caller) -> Mapping[str, Any] | None:
        """The status, with the reasons that this caller may read."""
        return status_for(caller, self._redaction, self._status)

    def _judge(self, found: Mapping[str, Any] | None) -> None:
        if found is not None:
            self._status = judged(found, self._settings.process.stats_interval_s)
            now = time.time()
            # The first finding's time stays: a time that moves would be read out again and again.
            self._heard_last = {
                name: self._heard_last.get(name) or stamp(now - age_s)
                for name, age_s in silent(self._status).items()
            }

    # Set from outside: only the service sees its connection.
    def nats_is(self, reason: str) -> None:
        """NATS can be used if there is no reason why it can't."""
        if not reason:
            self._nats_since = stamp()
        self.nats_reason = reason

    def stale(self) -> list[dict[str, Any]]:
        """The parts that can't be read now."""
        return [*self._away_servers(), *self._silent_services()]

    def _away_servers(self) -> list[dict[str, Any]]:
        found = self._known.stale()
        if self.nats_reason:
            found.append({"part": "nats", "since": self._nats_since, "reason": self.nats_reason})
        if self.status is not None and not self.status["postgres"]["reachable"]:
            reason = str(self.status["postgres"]["reason"])
            found.append({"part": "postgres", "since": self._postgres_since, "reason": reason})
        return found

    def _silent_services(self) -> list[dict[str, Any]]:
        # Without NATS no report arrives, and without telemetry nobody hears it: the banner then
        # names the cause.
        if self.status is None or self.nats_reason or self._known.stale():
            return []
        if not self.status["nats"]["connected"]:
            return []
        return [
            {"part": name, "since": since, "reason": NO_REPORT}
            for name, since in self._heard_last.items()
        ]

    def head(self) -> dict[str, Any]:
        """What every answer begins with."""
        return {"as_of": stamp(), "stale": self.stale()}

    def _take(self, now: float) -> None:
        """Add a sample, unless the last one is new."""
        if now - self._sampled_at < SAMPLE_S - INTERVAL_S / 2:
            return
        self._sampled_at = now
        status = self.status
        if status is None or self._known.stale():
            # A gap in the charts is true; a repeated value would not be.
            self._samples.append({"at": now, "events": None})
            return
        if status["postgres"]["reachable"]:
            self._postgres_since = stamp(now)
        # Only a fresh reading says where the log ends now.
        slot = status.get("slot") or {}
        if slot.get("wal_lsn") and status["postgres"]["reachable"]:
            self._ends.add(now, int(slot["wal_lsn"]))
        figures: Mapping[str, Any] = {}
        # The counts of a publisher that does not report would look like a stream without events.
        if self._publisher_reports():
            figures = status["services"]["publisher"]["figures"]
            self._tables.append((now, _by_table(figures.get("table_events") or {})))
        self._samples.append(
            {
                "at": now,
                "events": figures.get("cdc_events"),
                "bytes": figures.get("published_bytes"),
                "lag_bytes": slot.get("lag_bytes"),
                "lag_s": self._lag_s(now),
                "retained_bytes": slot.get("retained_bytes"),
            }
        )

    def _publisher_reports(self) -> bool:
        publisher = (self.status or {}).get("services", {}).get("publisher")
        return publisher is not None and publisher["state"] not in SILENT

    def _lag_s(self, now: float) -> float | None:
        slot = (self.status or {}).get("slot")
        if not slot:
            return None
        return self._ends.behind_s(now, int(slot["confirmed_lsn"]))

    def waterline(self) -> dict[str, Any]:
        lsns = self._sink_lsns.look()
        return waterline(self.status or {}, self._ends, time.time(), stamp(), lsns)

    def overview(self, caller: Caller) -> dict[str, Any]:
        status = self.status_for(caller)
        stale = self.stale()
        # The status describes an unreachable PostgreSQL and a silent service in more detail.
        away = [one for one in self._away_servers() if one["part"] != "postgres"]
        # Judged again for each answer: a verdict that was kept could be old.
        found = overview.troubles(status, away)
        slot = (status or {}).get("slot") or {}
        lag_bytes = slot.get("lag_bytes")
        return {
            "as_of": stamp(),
            "stale": stale,
            "source": self._settings.source.slot,
            "health": overview.health(found, self.paused, known=status is not None),
            "paused": self.paused,
            "rate": {"events_per_s": self._rate("events"), "bytes_per_s": self._rate("bytes")},
            "lag": {
                "seconds": self._lag_s(time.time()),
                "bytes": None if lag_bytes is None else str(lag_bytes),
            },
            "room": overview.room(status),
            "totals": overview.totals(status),
            "services": overview.service_lines(status),
            "waterline": self.waterline(),
        }

    def _rate(self, key: str) -> float | None:
        """Per second over the last samples; None if some of them are unknown."""
        # An old rate would look like a running stream.
        if len(self._samples) < 2 or self._known.stale() or not self._publisher_reports():
            return None
        last = self._samples[-1]
        first = self._samples[-min(_RATE_SAMPLES, len(self._samples))]
        return _per_second(first, last, key)

    def traffic(self, token: str) -> tuple[dict[str, int], float | None]:
        """A table's events by operation since the publisher started, and all of them per second;
        None if that is unknown.
        """
        if not self._tables:
            return {}, None
        (began, earlier), (now, latest) = self._tables[0], self._tables[-1]
        counts = latest.get(token, {})
        if now <= began or self._known.stale() or not self._publisher_reports():
            return counts, None
        before, after = (sum(one.get(token, {}).values()) for one in (earlier, latest))
        # A restarted publisher counts from zero.
        return counts, round(max(0, after - before) / (now - began), 3)

    def history(self, after: float) -> dict[str, Any]:
        """The samples after this time, figure by figure."""
        kept = [one for one in self._samples if (one["at"] or 0.0) > after]
        # A rate needs two samples: the first one of the answer has none.
        before = [None, *kept]
        rates = [
            None if earlier is None else _per_second(earlier, one, "events")
            for earlier, one in zip(before, kept, strict=False)
        ]
        columns = {
            name: [one.get(name) for one in kept]
            for name in ("lag_bytes", "lag_s", "retained_bytes")
        }
        return {
            **self.head(),
            "at": [one["at"] for one in kept],
            "events_per_s": rates,
            **columns,
        }


def _by_table(table_events: Mapping[str, float]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for labels, number in table_events.items():
        token, _, operation = labels.rpartition(" ")
        # A new structure is no change of the rows.
        if operation != "schema":
            found.setdefault(token, {})[operation] = int(number)
    return found


def _per_second(
    first: Mapping[str, float | None], last: Mapping[str, float | None], key: str
) -> float | None:
    one = first.get(key)
    other = last.get(key)
    elapsed = (last["at"] or 0.0) - (first["at"] or 0.0)
    if one is None or other is None or elapsed <= 0:
        return None
    # A restarted publisher counts from zero.
    return round(max(0.0, other - one) / elapsed, 3)
