"""The options of `headrace audit …` reach what they are for, and an expected error is one line."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.audit.query import Search
from headrace.audit.settings import load_audit
from headrace.cli.audit import read, up
from headrace.cli.audit.environment import environment
from headrace.cli.audit.trail_source import RunningSuite
from headrace.cli.main import app
from headrace.cli.up.view import View
from headrace.errors import HeadraceError
from headrace.settings import load

ID = "00000000-0000-8000-8000-000000000001"


class Called:
    """In the place of a coroutine: notes what it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.given: list[tuple[tuple[object, ...], dict[str, object]]] = []

    async def __call__(self, *given: object, **named: object) -> None:
        self.given.append((given, named))
        if self.error is not None:
            raise self.error


def called(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *words: str
) -> tuple[tuple[object, ...], dict[str, object]]:
    """What a command calls with."""
    work = Called()
    monkeypatch.setattr(module, name, work)
    outcome = CliRunner().invoke(app, ["audit", *words])
    assert outcome.exit_code == 0, outcome.output
    (given,) = work.given
    return given


def test_log_searches_by_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given, named = called(
        monkeypatch, read, "log", "log", "-t", "t", "-k", "1", "-c", "a=1", "--operation", "delete"
    )
    assert given == (Search(table="t", key="1", context="a=1", operation="DELETE", limit=50),)
    assert named == {"as_json": False}
    given, named = called(monkeypatch, read, "log", "log", "--json", "--limit", "7")
    assert (given, named) == ((Search(limit=7),), {"as_json": True})


def test_a_change_is_named_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(monkeypatch, read, "show", "show", ID) == ((ID,), {"as_json": False})
    assert called(monkeypatch, read, "show", "show", ID, "--json") == ((ID,), {"as_json": True})
    assert called(monkeypatch, read, "diff", "diff", ID) == ((ID,), {})


def test_a_row_is_named_by_its_time_table_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "at", "2h", "-t", "users", "-k", "1"
    assert called(monkeypatch, read, "at", *words) == (("2h", "users", "1"), {})


def test_a_revert_is_shown_unless_it_is_to_be_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    given, named = called(monkeypatch, read, "revert", "revert", "--id", ID)
    assert given == (ID, None, None, None)
    assert named == {"leave": (), "apply": False}
    given, named = called(
        monkeypatch,
        read,
        "revert",
        *("revert", "--transaction", "5", "--since", "2h", "--apply", "--leave", "a"),
        *("--leave", "b"),
    )
    assert given == (None, 5, None, "2h")
    assert named == {"leave": ["a", "b"], "apply": True}


def test_statistics_and_sql_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(monkeypatch, read, "stats", "stats", "--json") == ((), {"as_json": True})
    assert called(monkeypatch, read, "stats", "stats") == ((), {"as_json": False})
    assert called(monkeypatch, read, "sql", "sql") == ((), {})


def test_everything_is_started_in_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".headrace-audit"
    assert called(monkeypatch, up, "run", "up") == ((folder,), {"once": False, "verbose": False})
    words = "up", "--once", "--verbose"
    assert called(monkeypatch, up, "run", *words) == ((folder,), {"once": True, "verbose": True})


def test_an_expected_error_is_one_line_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "sql", Called(HeadraceError("no such thing")))
    outcome = CliRunner().invoke(app, ["audit", "sql"])
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith("headrace: no such thing")


class Server:
    """An embedded nats-server."""

    def __init__(self, calls: list[str], folder: Path) -> None:
        self.calls = calls
        self.folder = folder
        self.port = 4222
        self.url = "nats://here"
        self.running = False

    async def start(self) -> None:
        self.running = True
        self.calls.append("nats started")

    async def stop(self) -> None:
        self.calls.append("nats stopped")


class Run:
    """A run of `headrace audit up` whose parts note what they do."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, environ: dict[str, str]
    ) -> None:
        self.calls: list[str] = []
        self.said: list[str] = []
        self.services: dict[str, dict[str, str]] = {}
        self.suite: RunningSuite | None = None
        monkeypatch.setattr(os, "environ", dict(environ))
        for name in ("init", "teardown"):
            monkeypatch.setattr(up, name, SimpleNamespace(run=self._noting(name)))
        monkeypatch.setattr(up, "Supervisor", self._supervisor)
        monkeypatch.setattr(up, "suite_beside", self._suite_beside)
        given = environment(environ)
        view = View(verbose=False)
        monkeypatch.setattr(view, "done", self.said.append)
        monkeypatch.setattr(view, "say", lambda text, _: self.said.append(text))
        self.view = view
        self.one = up._AuditUp(folder, given, load_audit(given), view, cleanup=True)
        if self.one._nats is not None:
            self.one._nats = Server(self.calls, folder / "nats")  # type: ignore[assignment]  # as much as is used

    def _noting(self, name: str) -> Any:
        async def note(*_: object, **__: object) -> None:
            self.calls.append(name)

        return note

    async def _suite_beside(self, *_: object) -> RunningSuite | None:
        self.calls.append("looked for a suite")
        return self.suite

    def _supervisor(self, services: list[Any], *_: object, **__: object) -> Any:
        self.services = {service.name: dict(service.environment) for service in services}
        self.calls.append("services")
        self.over = asyncio.Event()

        async def ready(_: float) -> None:
            self.calls.append("ready")

        async def stopped() -> None:
            self.calls.append("services stopped")

        return SimpleNamespace(
            start=lambda: None,
            until_ready=ready,
            stop=stopped,
            check=lambda: self.calls.append("checked"),
            hasten=lambda: None,
            over=self.over,
            url=lambda name: f"http://{name}",
        )


ALONE = {"PG_HOST": "h", "PG_PORT": "5432", "PG_DB": "app"}


async def test_a_trail_alone_starts_its_server_its_objects_and_its_services_and_drops_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, tmp_path, ALONE)
    await run.one.run(once=True)
    assert run.calls == [
        "nats started",
        "init",
        "services",
        "ready",
        "services stopped",
        "teardown",
        "nats stopped",
    ]
    assert [*run.services] == ["wal-reader", "publisher", "audit-writer"]
    for environ in run.services.values():
        assert environ["NATS_URL"] == "nats://here"
        assert environ["HEADRACE_SLOT"] == "headrace_audit"
    assert "Every change of app is written to public.changes of app on h:5432" in run.said
    assert "Audit page: http://audit-writer/audit" in run.said
    assert run.view.quiet, "it is stopping"


async def test_a_trail_beside_a_suite_starts_one_service_and_drops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, tmp_path, {**ALONE, "NATS_URL": "nats://there"})
    run.suite = RunningSuite("suites", "CDC")
    await run.one.run(once=True)
    assert run.calls == ["looked for a suite", "services", "ready", "services stopped"]
    assert run.services["audit-writer"]["HEADRACE_SLOT"] == "suites"
    assert load(run.services["audit-writer"]).source.slot == "suites"


async def test_it_runs_until_its_services_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, tmp_path, ALONE)
    running = asyncio.create_task(run.one.run(once=False))
    while "ready" not in run.calls:  # noqa: ASYNC110  # a list has no event
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    run.over.set()
    await running
    assert run.calls[4:] == ["checked", "services stopped", "teardown", "nats stopped"]


async def test_a_signal_stops_it_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, ALONE)
    running = asyncio.create_task(run.one.run(once=False))
    while "ready" not in run.calls:  # noqa: ASYNC110  # as above
        await asyncio.sleep(0)
    run.one._signalled()
    await running
    assert run.calls[-3:] == ["services stopped", "teardown", "nats stopped"]


async def test_a_start_that_fails_drops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, tmp_path, ALONE)
    monkeypatch.setattr("headrace.cli.audit.up.init.run", Called(HeadraceError("refused")))
    with pytest.raises(HeadraceError, match="refused"):
        await run.one.run(once=True)
    assert run.calls == ["nats started", "nats stopped"]
