"""`headrace audit up`: the variables that it understands and those that its services get."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from nats.js.errors import NotFoundError

from headrace.audit.settings import load_audit
from headrace.cli.audit import trail_source, up
from headrace.cli.audit.environment import environment, in_their_words, yes
from headrace.cli.audit.trail_source import (
    AttachError,
    RunningSuite,
    suite_beside,
    without_a_suites,
)
from headrace.cli.setup import init, teardown
from headrace.cli.up.view import View
from headrace.embedded.process import AlreadyServedError
from headrace.settings import load


def test_other_auditors_variables_have_the_suites_names_and_override_them() -> None:
    theirs = {"DB_HOST": "h", "DB_NAME": "d", "LOG_LEVEL": "warn", "TABLES": "a,b", "PG_DB": "x"}
    made = environment(theirs)
    assert (made["PG_HOST"], made["PG_DB"]) == ("h", "d")
    assert made["HEADRACE_LOG_LEVEL"] == "warning"
    assert made["HEADRACE_AUDIT_TABLES"] == "a,b"
    assert environment({"LOG_LEVEL": "debug"})["HEADRACE_LOG_LEVEL"] == "debug"
    assert "HEADRACE_LOG_LEVEL" not in environment({})


@pytest.mark.parametrize("variable", ["PG_HOST", "PGHOST", "PGHOSTADDR", "PGSERVICE", "DB_HOST"])
def test_a_server_that_is_named_gets_no_defaults(variable: str) -> None:
    assert "PG_PORT" not in environment({variable: "h"})


def test_without_a_server_everything_that_is_not_said_is_the_default() -> None:
    made = environment({"PG_HOST": "", "DB_NAME": "d"})
    assert (made["PG_HOST"], made["PG_PORT"], made["PG_DB"]) == ("127.0.0.1", "5432", "d")
    assert made["POSTGRES_BRIDGE_USER"] == made["POSTGRES_BRIDGE_PASSWORD"] == "postgres"


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, "Set DB_HOST and DB_NAME, HEADRACE_AUDIT_TABLES=t"),
        ({"TABLES": "t"}, "Set DB_HOST and DB_NAME, TABLES=t"),
        ({"PG_HOST": "h"}, "Set PG_HOST and PG_DB, HEADRACE_AUDIT_TABLES=t"),
        ({"PGHOST": "h"}, "Set PG_HOST and PG_DB, HEADRACE_AUDIT_TABLES=t"),
        ({"PG_HOST": "h", "DB_NAME": "d"}, "Set DB_HOST and DB_NAME, HEADRACE_AUDIT_TABLES=t"),
    ],
)
def test_an_error_names_the_variables_that_its_user_knows(
    environ: dict[str, str], text: str
) -> None:
    assert in_their_words("Set PG_HOST and PG_DB, --tables t", environ) == text


def test_a_yes_has_several_forms() -> None:
    assert [yes(text) for text in ("1", "TRUE", "yes")] == [True] * 3
    assert [yes(text) for text in ("", "0", "no", "2")] == [False] * 4


def auditing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **environ: str
) -> tuple[up._AuditUp, View]:
    monkeypatch.setattr(os, "environ", dict(environ))
    given = environment(environ)
    view = View(verbose=False)
    made = up._AuditUp(tmp_path, given, load_audit(given), view, cleanup=True)
    return made, view


def test_a_separate_trail_has_its_own_slot_publication_and_a_stream_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = auditing(
        tmp_path,
        monkeypatch,
        HEADRACE_SLOT="suites",
        HEADRACE_PUB="suites",
        HEADRACE_ARCHIVE_URL="file:///a",
        NATS_URL="nats://there:1",
    )
    chosen = made._environment()
    assert (chosen["HEADRACE_SLOT"], chosen["HEADRACE_PUB"]) == ("headrace_audit",) * 2
    assert "HEADRACE_ARCHIVE_URL" not in chosen
    assert (chosen["HEADRACE_STREAM"], chosen["NATS_URL"]) == ("AUDIT", "nats://there:1")
    assert chosen["HEADRACE_RETENTION"] == "strict"
    assert chosen["HEADRACE_CDC_BYTES_MAX"] == str(2 * 1024**3)
    assert chosen["HEADRACE_CDC_AGE_MAX_S"] == str(10 * 365 * 24 * 3600)
    assert "HEADRACE_INCLUDE" not in chosen
    assert "public.changes" in chosen["HEADRACE_EXCLUDE"]


def test_a_trails_own_nats_server_has_a_stream_of_the_usual_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = auditing(
        tmp_path, monkeypatch, SLOT_NAME="a", PUBLICATION_NAME="b", TABLES="app.*,users"
    )
    assert made._nats is not None
    monkeypatch.setattr(type(made._nats), "url", "nats://here")
    chosen = made._environment()
    assert (chosen["HEADRACE_STREAM"], chosen["NATS_URL"]) == ("CDC", "nats://here")
    assert (chosen["HEADRACE_SLOT"], chosen["HEADRACE_PUB"]) == ("a", "b")
    assert chosen["HEADRACE_INCLUDE"] == "app.*,users"
    over, _ = auditing(tmp_path, monkeypatch, HEADRACE_STREAM="MINE", NATS_HOST="there")
    assert over._environment()["HEADRACE_STREAM"] == "MINE"
    assert over._nats is None


@pytest.mark.parametrize(
    ("tables", "published"), [("app.*,users", []), ("a,b.c", ["a", "b.c"]), ("", [])]
)
async def test_a_publication_has_the_tables_that_are_named_and_all_for_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: str, published: list[str]
) -> None:
    given: list[Any] = []

    async def create(_: object, tables: list[str], made: Any) -> None:
        given.append(tables)
        made.made("slot", "headrace_audit", "")

    monkeypatch.setattr(init, "run", create)
    made, view = auditing(tmp_path, monkeypatch, TABLES=tables)
    done: list[str] = []
    monkeypatch.setattr(view, "done", done.append)
    await made._make_objects(load({}))
    assert given == [published]
    assert done == ["Created slot headrace_audit"]


def test_in_a_suites_environment_the_trail_follows_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, view = auditing(tmp_path, monkeypatch, PG_HOST="h", HEADRACE_STREAM="old")
    said: list[str] = []
    monkeypatch.setattr(view, "say", lambda text, _: said.append(text))
    chosen = made._beside(RunningSuite("slot", "STREAM"))
    assert (chosen["HEADRACE_SLOT"], chosen["HEADRACE_STREAM"]) == ("slot", "STREAM")
    assert chosen["PG_HOST"] == "h"
    assert "HEADRACE_MESSAGE_PREFIXES=_bemi" in said[0]


def test_the_place_of_the_trail_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = auditing(tmp_path, monkeypatch, DEST_DB_HOST="there", DEST_DB_PORT="2")
    assert made._place(load(made._given)) == "public.changes of postgres on there:2"


class Supervisor:
    """Notes what it is given."""

    made: ClassVar[list[Supervisor]] = []

    def __init__(self, services: list[Any], _: object, *, stop_timeout_s: float) -> None:
        self.services = services
        self.stop_timeout_s = stop_timeout_s
        self.calls: list[str] = []
        Supervisor.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    async def until_ready(self, _: float) -> None:
        self.calls.append("ready")

    async def stop(self) -> None:
        self.calls.append("stop")

    def hasten(self) -> None:
        self.calls.append("hasten")


@pytest.mark.parametrize(
    ("suite", "names"),
    [
        (None, ["wal-reader", "publisher", "audit-writer"]),
        (RunningSuite("s", "S"), ["audit-writer"]),
    ],
)
async def test_only_the_services_that_a_suite_does_not_run_are_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suite: RunningSuite | None,
    names: list[str],
) -> None:
    monkeypatch.setattr(up, "Supervisor", Supervisor)
    made, _ = auditing(tmp_path, monkeypatch, HEADRACE_AUDIT_PORT="7777")
    made._suite = suite
    settings = load({"HEADRACE_SHUTDOWN_TIMEOUT_S": "30"})
    await made._services(settings)
    supervisor = Supervisor.made[-1]
    assert [service.name for service in supervisor.services] == names
    assert supervisor.services[-1].http_port == 7777
    assert len({service.http_port for service in supervisor.services}) == len(names)
    for service in supervisor.services:
        assert service.environment["HEADRACE_HTTP_PORT"] == str(service.http_port)
    assert supervisor.calls == ["start", "ready"]
    assert supervisor.stop_timeout_s == 33.0
    made._signalled()
    assert supervisor.calls == ["start", "ready"], "the first signal asks to stop"
    made._signalled()
    assert supervisor.calls[2:] == ["hasten"]


@pytest.mark.parametrize("cleanup", [True, False])
async def test_an_end_in_order_drops_what_the_trail_created_if_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cleanup: bool
) -> None:
    dropped: list[Any] = []

    async def drop(settings: object, *, yes: bool, streams: bool) -> None:
        dropped.append((settings, yes, streams))

    monkeypatch.setattr(teardown, "run", drop)
    made, _ = auditing(tmp_path, monkeypatch)
    calls: list[str] = []

    async def stopped() -> None:
        calls.append("nats")

    folder = tmp_path / "nats"
    folder.mkdir()
    made._nats = SimpleNamespace(running=True, stop=stopped, folder=folder)  # type: ignore[assignment]  # as much as is used
    await made._stop(cleanup=cleanup)
    assert dropped == [], "it created nothing"
    assert folder.exists()
    made._made = load({})
    await made._stop(cleanup=cleanup)
    assert dropped == ([(made._made, True, False)] if cleanup else [])
    assert folder.exists() is not cleanup
    assert calls == ["nats", "nats"]


def test_two_of_them_never_run_on_one_folder(tmp_path: Path) -> None:
    up._make(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "logs").is_dir()
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    up._make(tmp_path / "a" / "b")
    with up._alone(tmp_path):
        with pytest.raises(AlreadyServedError), up._alone(tmp_path):
            pass
        with up._alone(tmp_path / "a"):
            pass
    with up._alone(tmp_path):
        pass


def test_a_suites_objects_are_not_the_trails() -> None:
    environ = {"HEADRACE_SLOT": "s", "HEADRACE_PUB": "p", "HEADRACE_ARCHIVE_URL": "u", "A": "b"}
    assert without_a_suites(environ) == {"A": "b"}


class Server:
    """A NATS with a stream, and a PostgreSQL with slots."""

    def __init__(self, stream: str | None, *slots: str) -> None:
        self.stream = stream
        self.slots = slots

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @asynccontextmanager
        async def nats(*_: object) -> AsyncIterator[Any]:
            yield SimpleNamespace(jetstream=lambda: self), None

        @asynccontextmanager
        async def postgres(*_: object) -> AsyncIterator[Any]:
            yield self

        monkeypatch.setattr(trail_source, "nats", nats)
        monkeypatch.setattr(trail_source, "postgres", postgres)

    async def find_stream_name_by_subject(self, _: str) -> str:
        if self.stream is None:
            raise NotFoundError
        return self.stream

    async def fetchval(self, _: str, slot: str) -> int | None:
        return 1 if slot in self.slots else None


@pytest.mark.parametrize(
    ("server", "environ", "suite"),
    [
        (Server(None), {}, None),
        (Server("AUDIT"), {}, None),
        (Server("CDC", "headrace"), {}, RunningSuite("headrace", "CDC")),
        (
            Server("CDC", "mine"),
            {"HEADRACE_SLOT": "mine", "SLOT_NAME": "mine"},
            RunningSuite("mine", "CDC"),
        ),
        (Server("MINE", "headrace_audit"), {"HEADRACE_STREAM": "MINE"}, None),
        (Server("MINE", "a"), {"HEADRACE_STREAM": "MINE", "SLOT_NAME": "a"}, None),
        (
            Server("MINE", "headrace"),
            {"HEADRACE_STREAM": "MINE"},
            RunningSuite("headrace", "MINE"),
        ),
    ],
)
async def test_a_suite_is_one_that_delivers_to_this_nats_from_this_database(
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    environ: dict[str, str],
    suite: RunningSuite | None,
) -> None:
    server.install(monkeypatch)
    assert await suite_beside(environment(environ), environ) == suite


@pytest.mark.parametrize(
    ("environ", "match"),
    [
        ({"HEADRACE_SLOT": "a", "SLOT_NAME": "b"}, "a trail with its own slot needs a separate"),
        ({"HEADRACE_SLOT": "gone"}, "its slot gone is not in database"),
    ],
)
async def test_a_trail_that_cannot_follow_the_suite_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], match: str
) -> None:
    Server("CDC", "a").install(monkeypatch)
    with pytest.raises(AttachError, match=match):
        await suite_beside(environment(environ), environ)


async def test_a_run_cleans_up_if_its_user_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"DB_NAME": "d", "CLEANUP_ON_SHUTDOWN": "yes"})
    seen: list[bool] = []

    async def fail(one: up._AuditUp, *, once: bool) -> None:
        seen.append(one._cleanup and once)
        raise AttachError("it failed")

    monkeypatch.setattr(up._AuditUp, "run", fail)
    with pytest.raises(AttachError, match="it failed"):
        await up.run(tmp_path / "a", once=True, verbose=False)
    assert seen == [True]
    await asyncio.sleep(0)
