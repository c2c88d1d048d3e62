"""Telemetry forgets a service that has left the suite, and never one that the configuration asks
for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bus.participation import Report
from headrace.metrics.counters import Stats
from headrace.settings import load
from headrace.telemetry.configured import REMOVED_S, Asked, Configured
from headrace.telemetry.suite import DEAD_S, INSTANCES_MAX, STOPPED_S, SuiteStatus

YEAR_S = 365 * 86_400.0
READY: Stats = {"ready": 1}


def suite() -> SuiteStatus:
    return SuiteStatus(started_at=0.0, stats_interval_s=1.0)


def hear(
    status: SuiteStatus,
    service: str,
    at: float = 0.0,
    *,
    instance: str = "a",
    stopping: bool = False,
    stats: Stats | None = None,
) -> None:
    status.hear(service, Report(stats or READY, {}, instance, stopping=stopping), at)


def configured(tmp_path: Path, **environ: str) -> Configured:
    environ.setdefault("HEADRACE_CONFIG", str(tmp_path / "headrace.toml"))
    return Configured.of(load(environ), environ)


def write(tmp_path: Path, *sinks: str) -> None:
    text = "".join(f'[[sink]]\nname = "{name}"\nto = "file:///x"\n' for name in sinks)
    (tmp_path / "headrace.toml").write_text(text)


def forgotten(status: SuiteStatus, asked: Configured, now: float) -> list[str]:
    return status.forget(asked.asked, now)


@pytest.mark.parametrize("service", ["wal-reader", "publisher", "archiver", "audit-writer"])
@pytest.mark.parametrize("stopping", [True, False])
def test_a_service_that_the_settings_ask_for_is_silent_and_never_forgotten(
    tmp_path: Path, service: str, *, stopping: bool
) -> None:
    asked = configured(tmp_path, HEADRACE_ARCHIVE_URL="file:///a", HEADRACE_AUDIT="true")
    status = suite()
    hear(status, service, stopping=stopping)
    assert forgotten(status, asked, YEAR_S) == []
    assert status.services(YEAR_S)[service]["state"] == "silent"


def test_a_service_that_nothing_asks_for_is_forgotten_soon_after_an_ordered_stop_only(
    tmp_path: Path,
) -> None:
    asked = configured(tmp_path)
    status = suite()
    hear(status, "console", stopping=True)
    hear(status, "archiver")
    assert forgotten(status, asked, STOPPED_S) == []
    assert forgotten(status, asked, STOPPED_S + 1) == ["console"]
    assert forgotten(status, asked, DEAD_S) == []
    assert forgotten(status, asked, DEAD_S + 1) == ["archiver"]
    assert status.services(DEAD_S + 1) == {}


def test_a_process_that_died_after_another_one_stopped_in_order_is_a_dead_service(
    tmp_path: Path,
) -> None:
    asked = configured(tmp_path)
    status = suite()
    hear(status, "console", 0.0, instance="before", stopping=True)
    hear(status, "console", 10.0, instance="after")
    assert forgotten(status, asked, DEAD_S) == []


def test_a_service_that_reports_is_never_forgotten(tmp_path: Path) -> None:
    asked = configured(tmp_path)
    status = suite()
    hear(status, "sink-files", YEAR_S - 1, stopping=True)
    assert status.forget(lambda *_: Asked.NO_LONGER, YEAR_S) == []
    hear(status, "console", 0.0, instance="before", stopping=True)
    hear(status, "console", YEAR_S, instance="after")
    assert forgotten(status, asked, YEAR_S) == []


async def test_a_sink_is_forgotten_when_the_file_no_longer_has_it(tmp_path: Path) -> None:
    asked = configured(tmp_path)
    write(tmp_path, "files", "hook")
    await asked.look(0.0)
    status = suite()
    hear(status, "sink-files")
    hear(status, "sink-hook")
    assert forgotten(status, asked, YEAR_S) == []
    write(tmp_path, "hook")
    await asked.look(YEAR_S)
    assert forgotten(status, asked, YEAR_S + REMOVED_S) == ["sink-files"]
    # The consumer of a sink stays until the file is applied; the file has decided already.
    asked.consumers("created", frozenset({"sink-headrace-files"}), YEAR_S)
    assert asked.asked("sink-files", YEAR_S + REMOVED_S) is Asked.NO_LONGER
    assert status.services(YEAR_S)["sink-hook"]["state"] == "silent"


@pytest.mark.parametrize("text", ["", "[[sink]]\nname = 'other'\n"])
async def test_a_file_that_lacks_a_sink_for_a_moment_removes_none(
    tmp_path: Path, text: str
) -> None:
    asked = configured(tmp_path)
    write(tmp_path, "files")
    await asked.look(0.0)
    (tmp_path / "headrace.toml").write_text(text)
    await asked.look(1.0)
    assert asked.asked("sink-files", 1.0 + REMOVED_S / 2) is Asked.YES
    write(tmp_path, "files")
    await asked.look(2.0)
    assert asked.asked("sink-files", YEAR_S) is Asked.YES


@pytest.mark.parametrize("text", ["[[sink", "sink = 1", "[[sink]]\n", b"\xff", None])
async def test_a_file_that_says_nothing_removes_no_sink(
    tmp_path: Path, text: str | bytes | None
) -> None:
    asked = configured(tmp_path)
    write(tmp_path, "files")
    await asked.look(0.0)
    file = tmp_path / "headrace.toml"
    match text:
        case None:
            file.unlink()
        case bytes():
            file.write_bytes(text)
        case str():
            file.write_text(text)
    await asked.look(1.0)
    assert asked.asked("sink-files", YEAR_S) is Asked.YES


def test_without_the_file_a_sink_is_removed_when_its_consumer_was_deleted(tmp_path: Path) -> None:
    asked = configured(tmp_path)
    both = frozenset({"sink-headrace-files", "sink-headrace-hook", "sink-other-x", "app"})
    asked.consumers("monday", both, 0.0)
    asked.consumers("monday", both - {"sink-headrace-files"}, 1.0)
    assert asked.asked("sink-files", 1.0 + REMOVED_S) is Asked.NO_LONGER
    assert asked.asked("sink-hook", YEAR_S) is Asked.YES
    assert asked.asked("sink-x", YEAR_S) is Asked.UNKNOWN


def test_a_stream_that_was_created_again_removes_no_sink(tmp_path: Path) -> None:
    asked = configured(tmp_path)
    asked.consumers("monday", frozenset({"sink-headrace-files"}), 0.0)
    asked.consumers("tuesday", frozenset(), 1.0)
    assert asked.asked("sink-files", YEAR_S) is Asked.UNKNOWN


def test_settings_that_a_service_refuses_ask_for_it(tmp_path: Path) -> None:
    asked = configured(tmp_path, HEADRACE_AUDIT="true", HEADRACE_AUDIT_SCHEMA='"; DROP')
    assert asked.asked("audit-writer", 0.0) is Asked.YES


def test_a_process_that_restarts_again_and_again_hides_no_other_service() -> None:
    status = suite()
    hear(status, "sink-dead", 0.0)
    for number in range(3 * INSTANCES_MAX):
        hear(status, "sink-restless", 1.0 + number, instance=str(number))
    assert status.services(1000.0)["sink-dead"]["state"] == "silent"
    for number in range(2 * INSTANCES_MAX):
        hear(status, f"sink-{number}", 1000.0)
    assert len(status.services(1000.0)) == 2 * INSTANCES_MAX + 2


def test_no_total_decreases_when_a_service_is_forgotten(tmp_path: Path) -> None:
    asked = configured(tmp_path)
    status = suite()
    hear(status, "console", stopping=True, stats={"ready": 1, "nats_reconnects": 7})
    before = status.totals(YEAR_S).nats_reconnects
    assert forgotten(status, asked, YEAR_S) == ["console"]
    assert status.totals(YEAR_S).nats_reconnects == before == 7
