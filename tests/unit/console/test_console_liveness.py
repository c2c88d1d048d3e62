"""Servers and services that do not answer never look well, sooner than telemetry's own verdict."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.console.liveness import judged, silent
from headrace.console.overview import health, service_lines, troubles
from headrace.console.waterline import LogEnds, waterline

SLOT = {
    "active": True,
    "wal_status": "reserved",
    "confirmed_lsn": 100,
    "retained_bytes": 10,
    "loss_s": None,
    "alarm": "ok",
    "wal_lsn": 110,
}


def status(*, waiting_s: float = 0.0, age_s: float = 0.5, state: str = "ready") -> dict[str, Any]:
    services = {
        name: {"state": "ready", "age_s": 0.5, "reasons": {}, "figures": {}, "instances": 1}
        for name in ("wal-reader", "publisher", "schema-publisher", "snapshot-responder")
    }
    services["sink-files"] = {**services["publisher"], "state": state, "age_s": age_s}
    return {
        "source": "shop",
        "postgres": {"reachable": True, "reason": "", "waiting_s": waiting_s},
        "nats": {"connected": True},
        "slot": SLOT,
        "consumers": [],
        "services": services,
    }


def verdict(found: dict[str, Any]) -> str:
    return str(health(troubles(found, []), None, known=True)["state"])


def test_what_answers_is_well() -> None:
    found = judged(status(waiting_s=0.9, age_s=1.9), 1.0)
    assert found == status(waiting_s=0.9, age_s=1.9)
    assert verdict(found) == "running"
    assert silent(found) == {}


def test_a_query_that_takes_longer_than_a_second_means_that_postgresql_is_away() -> None:
    found = judged(status(waiting_s=1.1), 1.0)
    (one,) = troubles(found, [])
    assert one["text"] == "PostgreSQL can't be reached: it does not answer"
    points = waterline(found, LogEnds(), 0.0, "now")["points"]
    states = {one["kind"]: one["state"] for one in points}
    assert (states["wal"], states["confirmed"], states["restart"]) == (
        "failed",
        "attention",
        "attention",
    )


@pytest.mark.parametrize(("age_s", "interval_s", "late"), [(2.1, 1.0, True), (2.1, 5.0, False)])
def test_a_service_that_misses_two_reports_does_not_look_well(
    age_s: float, interval_s: float, late: bool
) -> None:
    found = judged(status(age_s=age_s), interval_s)
    assert (silent(found) == {"sink-files": 2.1}) is late
    states = {one["name"]: one["state"] for one in service_lines(found)}
    assert states["sink-files"] == ("attention" if late else "running")
    assert states["publisher"] == "running"
    assert verdict(found) == ("attention" if late else "running")


def test_the_verdict_of_telemetry_stays() -> None:
    found = judged(status(age_s=60.0, state="silent"), 1.0)
    assert verdict(found) == "failed"
    assert silent(found) == {"sink-files": 60.0}


def test_an_older_telemetry_that_does_not_say_how_long_it_waits_is_believed() -> None:
    found = status()
    del found["postgres"]["waiting_s"]
    for service in found["services"].values():
        del service["age_s"]
    assert judged(found, 1.0) == found


def test_a_silent_sink_has_the_command_that_starts_it_and_the_one_that_removes_it() -> None:
    (one,) = troubles(judged(status(age_s=60.0, state="silent"), 1.0), [])
    assert "headrace sink files" in one["remedy"]
    assert "headrace sinks apply" in one["remedy"]


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(1, "A."), (2, "A. There is one more finding."), (3, "A. There are 2 more findings.")],
)
def test_the_sentence_counts_the_other_findings(number: int, sentence: str) -> None:
    found = [{"text": "A.", "state": "failed"}] * number
    assert health(found, None, known=True)["sentence"] == sentence
