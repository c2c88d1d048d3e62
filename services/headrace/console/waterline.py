"""Every LSN that the suite knows, on one axis. Pure.

Bytes are differences of LSNs. Seconds come from when PostgreSQL's log ended where a point is now:
samples of the log's end, kept for an hour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.lsn import format_lsn

# An hour at two seconds: a point that is further behind has bytes only.
SAMPLES_MAX = 1_800

# A service, its figure with an LSN, the kind of point, and what it says.
_FIGURES = (
    ("publisher", "confirmed_lsn", "publisher", "The stream has every change before it."),
    ("archiver", "archive_confirmed_lsn", "archive", "The archive is complete up to it."),
    ("lake-writer", "lake_lsn", "lake", "The lake's last cut shows this moment."),
    ("audit-writer", "audit_lsn", "audit", "The audit trail is written up to it."),
    ("wal-archiver", "backup_stored_lsn", "backup", "The physical log is stored up to it."),
)
# Telemetry's words and the pages'.
STATES = {
    "ready": "running",
    "not ready": "attention",
    "late": "attention",
    "silent": "failed",
}
# The oldest message that a consumer has not read may be so old.
_KEEPS_UP_S = 60.0


# Samples are further apart only if some are missing.
APART_S_MAX = 1.0


class LogEnds:
    """When PostgreSQL's log ended where."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._lsns: list[int] = []

    def add(self, now: float, lsn: int) -> None:
        if self._lsns and lsn < self._lsns[-1]:
            # Another server: its LSNs don't continue the earlier ones.
            self._times.clear()
            self._lsns.clear()
        self._times.append(now)
        self._lsns.append(lsn)
        if len(self._lsns) > SAMPLES_MAX:
            del self._times[0], self._lsns[0]

    def behind_s(self, now: float, lsn: int) -> float | None:
        """How long ago the log ended here; None if that is longer than the samples reach back."""
        if not self._lsns or lsn < self._lsns[0]:
            return None
        # The first sample beyond it: since shortly before, the log is longer than this.
        place = bisect_right(self._lsns, lsn)
        if place == len(self._lsns):
            return 0.0
        first, last = self._lsns[place - 1], self._lsns[place]
        # In between the log grew evenly, as far as anyone knows. Without that, a reader that keeps
        # up would be no time behind in one sample, and a whole interval in the next.
        apart = min(self._times[place] - self._times[place - 1], APART_S_MAX)
        passed = self._times[place] - apart * (last - lsn) / (last - first)
        return round(max(0.0, now - passed), 3)


def waterline(
    status: Mapping[str, Any],
    ends: LogEnds,
    now: float,
    at: str,
    sink_lsns: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """The points that are known, the head first."""
    slot = status.get("slot")
    services = status.get("services") or {}
    # Telemetry keeps the last slot that it saw, and says if it is old.
    head = None
    if slot is not None and slot["wal_lsn"]:
        head = int(slot["wal_lsn"])
    axis = _Axis(head, ends, now, at)
    points: list[dict[str, Any]] = []
    if head is not None and slot is not None:
        name = str(status.get("source"))
        reachable = bool((status.get("postgres") or {}).get("reachable"))
        state = "running" if reachable else "failed"
        points += [
            axis.point("wal", "PostgreSQL", head, state, "The end of PostgreSQL's log."),
            axis.point(
                "confirmed",
                name,
                int(slot["confirmed_lsn"]),
                _slot_state(slot),
                "Everything before it is confirmed to PostgreSQL.",
            ),
            axis.point(
                "restart",
                name,
                head - int(slot["retained_bytes"]),
                _slot_state(slot),
                "PostgreSQL keeps its log from here on.",
            ),
        ]
    points += [
        axis.point(kind, service, int(figure), STATES[services[service]["state"]], text)
        for service, key, kind, text in _FIGURES
        if service in services and (figure := services[service]["figures"].get(key))
    ]
    points += [
        _sink(axis, name.removeprefix("sink-"), service, sink_lsns)
        for name, service in services.items()
        if name.startswith("sink-")
    ]
    # The consumer of a sink that reports would be the same reader once more.
    prefix = f"sink-{status.get('source')}-"
    own = {name.replace("sink-", prefix, 1) for name in services if name.startswith("sink-")}
    points += [
        _consumer(view, at) for view in status.get("consumers") or () if view["name"] not in own
    ]
    return {"head": format_lsn(head) if head is not None else None, "points": points}


class _Axis:
    def __init__(self, head: int | None, ends: LogEnds, now: float, at: str) -> None:
        self._head = head
        self._ends = ends
        self._now = now
        self.at = at

    def point(self, kind: str, name: str, lsn: int, state: str, text: str) -> dict[str, Any]:
        # Without a head there is nothing to be behind of.
        behind = None
        if self._head is not None:
            # A figure may be newer than the reading of the log's end.
            behind = str(max(0, self._head - lsn))
        return {
            "kind": kind,
            "name": name,
            "lsn": format_lsn(lsn),
            "behind_bytes": behind,
            "behind_s": self._ends.behind_s(self._now, lsn),
            "at": self.at,
            "state": state,
            "text": text,
        }


def _slot_state(slot: Mapping[str, Any]) -> str:
    # Lost is final: no reader brings the log back.
    if slot["wal_status"] == "lost":
        return "failed"
    if slot["alarm"] != "ok" or not slot["active"]:
        return "attention"
    return "running"


def _sink(
    axis: _Axis, name: str, service: Mapping[str, Any], lsns: Mapping[str, int]
) -> dict[str, Any]:
    """A sink counts messages of the stream, whose LSN only the stream knows."""
    figures = service["figures"]
    behind_s = figures.get("sink_behind_seconds")
    state = STATES[service["state"]]
    text = f"{int(figures.get('sink_behind_messages', 0))} messages behind the stream."
    if name not in lsns:
        return _unplaced("sink", name, behind_s, state, text, axis.at)
    return {**axis.point("sink", name, lsns[name], state, text), "behind_s": behind_s}


def consumer_state(view: Mapping[str, Any]) -> str:
    """Running is only a consumer that is known to keep up: JetStream also keeps those that nobody
    reads any more.
    """
    if view["lost"]:
        return "attention"
    return "waiting" if view["lag_s"] > _KEEPS_UP_S else "running"


def _consumer(view: Mapping[str, Any], at: str) -> dict[str, Any]:
    state = consumer_state(view)
    text = f"{view['pending']} messages behind the stream."
    return _unplaced("consumer", str(view["name"]), view["lag_s"], state, text, at)


def _unplaced(
    kind: str, name: str, behind_s: float | None, state: str, text: str, at: str
) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "lsn": None,
        "behind_bytes": None,
        "behind_s": behind_s,
        "at": at,
        "state": state,
        "text": text,
    }
