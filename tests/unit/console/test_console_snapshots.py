"""A running snapshot is shown as running only while its progress is heard."""

from __future__ import annotations

from typing import Any

from headrace.console.snapshots import FORGOTTEN_S, SnapshotReport, running_now

SILENT_S = 5.0


def progress(name: str, heard: float) -> SnapshotReport:
    document: dict[str, Any] = {"id": name, "state": "running", "phase": "copying", "reason": None}
    return SnapshotReport(document, began=0.0, heard=heard)


def shown(heard: float, now: float | None) -> tuple[str, str, bool] | None:
    found = running_now([progress("a", heard)], (), now, SILENT_S)
    if not found:
        return None
    return found[0]["state"], found[0]["phase"], found[0]["reason"] is not None


def test_a_snapshot_whose_responder_is_silent_is_not_shown_as_running() -> None:
    assert shown(100.0, 104.0) == ("running", "copying", False)
    assert shown(100.0, 106.0) == ("attention", "waiting", True)
    # Another responder has taken it.
    assert shown(105.5, 106.0) == ("running", "copying", False)


def test_a_snapshot_that_nobody_continues_is_forgotten() -> None:
    assert shown(100.0, 100.0 + FORGOTTEN_S) is not None
    assert shown(100.0, 101.0 + FORGOTTEN_S) is None


def test_nothing_that_is_heard_by_nobody_counts_as_silent() -> None:
    """Without NATS the page says that the list is old."""
    assert shown(100.0, None) == ("running", "copying", False)


def test_the_last_progress_after_the_end_is_not_shown() -> None:
    both = [progress("a", 1.0), progress("b", 1.0)]
    assert [one["id"] for one in running_now(both, {"a"}, 2.0, SILENT_S)] == ["b"]
