"""The suite's health in a sentence, what to do about it, and its figures. Pure.

Judges telemetry's `/status` only: what it doesn't say is unknown, never well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.console.liveness import SILENT
from headrace.console.waterline import STATES, consumer_state
from headrace.suite.services import SERVICES, SINK, facts_of

_RANK = ("running", "waiting", "paused", "attention", "failed")
_FORESEEN_S = 90 * 86_400
Document = dict[str, Any]


def troubles(
    status: Mapping[str, Any] | None, stale: Sequence[Mapping[str, Any]]
) -> list[Document]:
    """The findings, the worst first."""
    # Values that can't be read are findings, too: an old value that looks well proves nothing.
    found = [_stale_trouble(one) for one in stale]
    if status is None:
        return found
    postgres = status["postgres"]
    # The cause before its effects: services that wait for PostgreSQL are not ready either.
    if not postgres["reachable"]:
        found.append(
            _trouble(
                "postgres",
                "failed",
                f"PostgreSQL can't be reached: {postgres['reason']}",
                "Start it, or correct PG_HOST and PG_PORT.",
                "/system/doctor",
            )
        )
    elif postgres["reason"]:
        found.append(
            _trouble(
                "slot", "failed", str(postgres["reason"]), "Run headrace init.", "/system/doctor"
            )
        )
    if not status["nats"]["connected"]:
        found.append(
            _trouble(
                "nats",
                "failed",
                "Telemetry is not connected to NATS.",
                "Start nats-server, or correct NATS_URL.",
                "/system/doctor",
            )
        )
    # A slot that was not read is no trouble of the slot.
    if postgres["reachable"]:
        found += _slot_troubles(status.get("slot"))
    found += [one for name, one in _service_troubles(status).items() if name]
    found += [_consumer_trouble(view) for view in status["consumers"] if view["lost"]]
    # The sort is stable: among equally bad ones, a cause stays before its effects.
    return sorted(found, key=lambda one: -_RANK.index(one["state"]))


def _stale_trouble(one: Mapping[str, Any]) -> Document:
    trouble = _trouble(
        str(one["part"]),
        "failed",
        f"{one['part']} can't be read: {one['reason']}",
        "The page shows the last known values of it.",
        "/system/services",
    )
    return {**trouble, "since": one["since"]}


def _trouble(part: str, state: str, text: str, remedy: str, link: str | None) -> Document:
    return {
        "part": part,
        "state": state,
        "text": text,
        "remedy": remedy,
        "since": None,
        "link": link,
    }


def _slot_troubles(slot: Mapping[str, Any] | None) -> list[Document]:
    if slot is None:
        return []
    # A lost slot can't be read any more, so its other facts are of no use.
    kept = _size(int(slot["retained_bytes"]))
    if slot["wal_status"] == "lost":
        return [
            _trouble(
                "slot",
                "failed",
                "PostgreSQL has removed log that the slot needed.",
                "Run headrace doctor; the tables have to be copied again.",
                "/system/doctor",
            )
        ]
    found = []
    if slot["loss_s"] is not None and slot["alarm"] != "ok":
        found.append(
            _trouble(
                "slot",
                "attention",
                f"At this pace PostgreSQL removes the slot's log in {slot['loss_s']:.0f} s.",
                "Find the service that is behind.",
                "/system/services",
            )
        )
    # Without a limit, the slot is never lost: the disk fills up instead.
    elif slot["alarm"] != "ok":
        found.append(
            _trouble(
                "slot",
                "attention",
                f"The slot makes PostgreSQL keep {kept} of log.",
                "Find the service that is behind.",
                "/system/services",
            )
        )
    if not slot["active"]:
        found.append(
            _trouble(
                "slot",
                "attention",
                "Nobody reads the slot.",
                "Start the wal-reader.",
                "/system/services",
            )
        )
    return found


def _service_troubles(status: Mapping[str, Any]) -> dict[str, Document]:
    services = status["services"]
    found = {}
    for name, service in services.items():
        reasons = "; ".join(service["reasons"].values())
        if service["state"] in SILENT:
            found[name] = _trouble(
                name,
                STATES[service["state"]],
                f"{name} does not report any more.",
                _start(name),
                "/system/services",
            )
        elif service["state"] == "not ready":
            found[name] = _trouble(
                name,
                "attention",
                f"{name} can't work: {reasons}",
                "The reason says what to do.",
                "/system/services",
            )
    # An optional service that never reported was probably not asked for.
    for name, facts in SERVICES.items():
        if name not in services and not facts.optional and name != "telemetry":
            found[name] = _trouble(
                name,
                "attention",
                f"{name} has never reported.",
                _start(name),
                "/system/services",
            )
    return found


def _start(service: str) -> str:
    if facts_of(service) is not SINK:
        return f"Start headrace {service}."
    name = service.removeprefix(f"{SINK.name}-")
    return f"Run headrace sink {name}, or headrace sinks apply if the file no longer has it."


def _consumer_trouble(view: Mapping[str, Any]) -> Document:
    return _trouble(
        str(view["name"]),
        "attention",
        f"The consumer {view['name']} has lost {view['lost']} messages.",
        "It has to copy the tables again; enlarge the stream's retention.",
        f"/consumers/{view['stream']}/{view['name']}",
    )


def health(found: Sequence[Mapping[str, Any]], paused: object, *, known: bool) -> Document:
    """The worst state, and one sentence about it."""
    # Before the first answer of telemetry nothing is known, so nothing is well.
    if not known:
        text = "Nothing is known about the suite yet."
        if found:
            text = str(found[0]["text"])
        return {"state": "failed", "sentence": text, "troubles": list(found)}
    # A finding outweighs a pause: paused and broken is broken.
    if found:
        first = str(found[0]["text"]).rstrip(".")
        more = {1: "", 2: " There is one more finding."}.get(
            len(found), f" There are {len(found) - 1} more findings."
        )
        return {
            "state": found[0]["state"],
            "sentence": f"{first}.{more}",
            "troubles": list(found),
        }
    if paused:
        return {
            "state": "paused",
            "sentence": "Publishing is paused; PostgreSQL keeps the log meanwhile.",
            "troubles": [],
        }
    return {"state": "running", "sentence": "Everything works.", "troubles": []}


def service_lines(status: Mapping[str, Any] | None) -> list[Document]:
    """The services that have reported."""
    if status is None:
        return []
    return [
        {
            "name": name,
            "state": STATES[service["state"]],
            "reasons": [str(reason) for reason in service["reasons"].values()],
            "instances": int(service["instances"]),
            "uptime_s": _number(service["figures"].get("uptime_seconds")),
        }
        for name, service in status["services"].items()
    ]


def service_details(status: Mapping[str, Any] | None) -> list[Document]:
    """The same, with what each is for and its telling figures."""
    found = []
    for line in service_lines(status):
        facts = facts_of(line["name"])
        figures = {}
        if status is not None and facts is not None:
            held = status["services"][line["name"]]["figures"]
            figures = {key: f"{held[key]:g}" for key in facts.telling if _is_number(held.get(key))}
        purpose = ""
        if facts is not None:
            purpose = facts.purpose
        found.append({**line, "purpose": purpose, "figures": figures})
    return found


def room(status: Mapping[str, Any] | None) -> Document | None:
    """The least time that a consumer or the slot has before something is lost."""
    if status is None:
        return None
    left = [
        (float(view["left_s"]), f"{view['stream']} {view['name']}")
        for view in status["consumers"]
        if view["left_s"] is not None
    ]
    # The slot is a reader, too, whose loss ends the stream itself.
    slot = status.get("slot")
    if slot and slot["loss_s"] is not None:
        left.append((float(slot["loss_s"]), f"slot {status['source']}"))
    # A projection over months says nothing.
    left = [one for one in left if one[0] <= _FORESEEN_S]
    if not left:
        return None
    # The first one that loses something is the one to act on.
    seconds, who = min(left)
    return {"seconds": seconds, "consumer": who}


def totals(status: Mapping[str, Any] | None) -> dict[str, str | None]:
    return {
        "events": _figure(status, "publisher", "cdc_events"),
        "transactions": _figure(status, "publisher", "transactions"),
        "tables": _figure(status, "schema-publisher", "tables"),
    }


def _figure(status: Mapping[str, Any] | None, service: str, key: str) -> str | None:
    if status is None:
        return None
    value = status["services"].get(service, {}).get("figures", {}).get(key)
    if not _is_number(value):
        return None
    return str(int(value))


def consumers(status: Mapping[str, Any] | None) -> list[Document]:
    """The consumers, the one that loses events first at the top."""
    if status is None:
        return []
    # A loss that has happened comes before one that may.
    views = sorted(status["consumers"], key=lambda view: (-view["lost"], view["left_ratio"]))
    return [
        {
            "stream": view["stream"],
            "name": view["name"],
            "state": consumer_state(view),
            "pending": str(view["pending"]),
            "unacknowledged": str(view["unacknowledged"]),
            "lag_s": view["lag_s"],
            "left_s": view["left_s"],
            "left_bytes": _whole(view["left_bytes"]),
            "left_ratio": view["left_ratio"],
            "lost": str(view["lost"]),
            "text": _losing(view),
        }
        for view in views
    ]


def _losing(view: Mapping[str, Any]) -> str:
    if view["lost"]:
        return f"It has lost {view['lost']} messages, the oldest ones that it had not acknowledged."
    if not view["pending"] and not view["unacknowledged"]:
        return "It has everything."
    if view["left_s"] is None:
        return "The stream keeps what it has not acknowledged."
    return f"In {view['left_s']:.0f} s it loses the oldest message that it has not acknowledged."


def _whole(value: float | None) -> str | None:
    if value is None:
        return None
    return str(int(value))


def _number(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
