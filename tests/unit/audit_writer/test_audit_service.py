"""The audit-writer's process: what it waits for, what ends it, and its health."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import aiohttp
import asyncpg
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from nats.errors import TimeoutError as NatsTimeoutError

from headrace.audit.query import Search, TrailPosition
from headrace.audit.settings import load_audit
from headrace.audit_writer import page as pages
from headrace.audit_writer import service, source
from headrace.audit_writer.page import Page
from headrace.audit_writer.service import EXPIRE_S, LOOK_S, AuditWriter
from headrace.audit_writer.trail import FEEDERS, Trail
from headrace.bus import participation
from headrace.consumer import RetentionGapError, StreamMissingError
from headrace.embedded.ports import free_port
from headrace.errors import HeadraceError, SettingError
from headrace.postgres import connection
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import load

# Every address of this machine.
ANYWHERE = "0.0.0.0"  # noqa: S104  # nothing is served


@pytest.fixture
def scope() -> Scope:
    return Scope("audit-writer", load({}).process, asyncio.TaskGroup(), Health("audit-writer"))


def writer(scope: Scope, **client: Any) -> AuditWriter:
    known: Any = SimpleNamespace(**{"is_closed": False, "is_connected": True, **client})
    return AuditWriter(scope, load({}), load_audit({}), known)


def figure(scope: Scope, key: str) -> Any:
    return scope.health.stats.values().get(key)


class RefusedError(HeadraceError):
    """Nothing that waiting changes."""


def test_a_refusal_ends_the_process_until_it_has_worked_and_is_waited_for_then(
    scope: Scope,
) -> None:
    made = writer(scope)
    with pytest.raises(RefusedError):
        made._blocked(RefusedError("no"))
    made._worked = True
    made._blocked(RefusedError("no"))
    assert scope.health.reasons["destination"].startswith("no")
    assert figure(scope, "audit_recoveries") == 1


@pytest.mark.parametrize(
    ("error", "part", "reason"),
    [
        (OSError("no route"), "destination", "no route"),
        (TimeoutError(), "destination", "it did not answer in time"),
        (ConnectionResetError(), "destination", "ConnectionResetError"),
        (asyncpg.PostgresError("disk full"), "destination", "disk full"),
        (asyncpg.InternalClientError("cannot switch to state 15"), "destination", "cannot switch"),
        (NatsTimeoutError(), "stream", "nats: timeout"),
        (StreamMissingError("no stream"), "stream", "no stream"),
    ],
)
def test_what_is_out_of_reach_is_waited_for_and_named(
    scope: Scope, error: Exception, part: str, reason: str
) -> None:
    writer(scope)._blocked(error)
    assert {part} == scope.health.reasons.keys() - {"start"}
    assert scope.health.reasons[part].startswith(reason)


def test_a_client_that_gave_up_ends_the_process(scope: Scope) -> None:
    with pytest.raises(participation.BusClosedError):
        writer(scope, is_closed=True)._blocked(OSError("no route"))


def test_a_session_that_follows_is_ready(scope: Scope) -> None:
    made = writer(scope)
    for part in ("destination", "stream", "audit"):
        scope.health.block(part, "down")
    destination: Any = SimpleNamespace(state=SimpleNamespace(position=1, stream_seq=2))
    made._ready(destination)
    assert scope.health.reasons == {}
    assert made._worked


async def pauses_of(
    scope: Scope, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any], number: int
) -> list[float]:
    """The pauses of a task that is stopped in the last of them."""
    pauses: list[float] = []

    async def pause(_: Scope, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == number:
            scope.stopping.set()

    monkeypatch.setattr(Scope, "pause", pause)
    async with asyncio.timeout(10):
        await work()
    return pauses


class Destination:
    """Has old rows a few times."""

    def __init__(self, *removed: int | Exception) -> None:
        self.removed = list(removed)
        self.kept: list[int] = []
        self.gaps: list[tuple[int, str]] = []
        self.calls: list[str] = []

    async def expire(self, keep_days: int) -> int:
        self.kept.append(keep_days)
        found = self.removed.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def claim(self) -> None:
        self.calls.append("claim")

    async def prepare(self) -> None:
        self.calls.append("prepare")

    async def note_gap(self, seq: int, reason: str) -> None:
        self.gaps.append((seq, reason))


def reaching(
    monkeypatch: pytest.MonkeyPatch, destination: Destination, *errors: Exception | None
) -> None:
    """Let the destination be reached, or not."""
    left = list(errors)

    @asynccontextmanager
    async def open_it(_: AuditWriter) -> AsyncIterator[Destination]:
        error = left.pop(0) if left else None
        if error is not None:
            raise error
        yield destination

    monkeypatch.setattr(AuditWriter, "_destination", open_it)


async def test_old_rows_are_removed_as_long_as_there_are_any_and_then_now_and_then(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = Destination(5, 0, OSError("away"), 2)
    reaching(monkeypatch, destination)
    made = writer(scope)
    pauses = await pauses_of(scope, monkeypatch, lambda: made.expire(30), 4)
    assert pauses == [1.0, EXPIRE_S, EXPIRE_S, 1.0]
    assert destination.kept == [30] * 4
    assert figure(scope, "audit_expired") == 7


async def test_how_far_the_trail_is_behind_is_measured_while_the_stream_answers(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    async def behind(_: object, stream: str, seq: int) -> Any:
        asked.append((stream, seq))
        if len(asked) == 2:
            raise NatsTimeoutError
        return SimpleNamespace(messages=4, age_s=2.5)

    monkeypatch.setattr(service, "behind", behind)
    made = writer(scope, jetstream=lambda: None)
    assert await pauses_of(scope, monkeypatch, made.look, 1) == [LOOK_S]
    assert asked == [], "there is no session"
    scope.stopping.clear()
    made._session = SimpleNamespace(settled_seq=9)  # type: ignore[assignment]  # as much as is asked
    await pauses_of(scope, monkeypatch, made.look, 2)
    assert asked == [("CDC", 9)] * 2
    assert figure(scope, "audit_behind_messages") == 4
    assert figure(scope, "audit_behind_seconds") == 2.5
    made._client = SimpleNamespace(is_connected=False)  # type: ignore[assignment]  # as above
    scope.stopping.clear()
    await pauses_of(scope, monkeypatch, made.look, 1)
    assert len(asked) == 2


async def test_a_loss_is_noted_with_what_was_lost_from_the_state_that_was_committed(
    scope: Scope,
) -> None:
    destination: Any = Destination()
    made = writer(scope)

    def gap(**facts: Any) -> Any:
        known = {"first_lost": 3, "last_lost": 7, "rewritten": False, "damaged": False}
        return type("Gap", (), {**known, **facts, "__str__": lambda _: "damaged at 3"})()

    await made._note(destination, gap())
    await made._note(destination, gap(damaged=True))
    await made._note(destination, gap(rewritten=True))
    assert destination.gaps == [
        (7, "the stream discarded 3 to 7 unread"),
        (7, "damaged at 3"),
        (0, "the stream was recreated; its events from 3 on may be lost"),
    ]
    assert destination.calls == ["prepare"] * 3
    assert figure(scope, "audit_gaps") == 3


async def test_a_failed_session_is_followed_by_another_and_progress_resets_the_wait(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = Destination()
    reaching(monkeypatch, destination, OSError("1"), OSError("2"), None, OSError("4"))
    monkeypatch.setattr("random.uniform", lambda _, high: high)
    made = writer(scope)

    async def followed(_: AuditWriter, __: object) -> None:
        made._wrote = True
        raise OSError("3")

    monkeypatch.setattr(AuditWriter, "_follow", followed)
    pauses = await pauses_of(scope, monkeypatch, made.run, 4)
    assert destination.calls == ["claim", "prepare"]
    assert pauses[1] > pauses[0]
    assert pauses[2] < pauses[1], "the third session had written something"
    assert pauses[3] > pauses[2], "the fourth had not"


async def test_feeders_that_are_silent_or_not_ready_stop_the_trail(scope: Scope) -> None:
    settings = load({"HEADRACE_STATS_INTERVAL_S": "1"})
    trail = Trail(scope.health, settings)
    scope.health.started()
    silent = [f"{name}: no report was received for 5 s" for name in FEEDERS]
    assert trail.reasons(0.0) == silent
    scope.health.block("destination", "away")
    assert trail.reasons(0.0) == ["audit-writer: away", *silent]
    scope.health.unblock("destination")
    for name in FEEDERS:
        trail._heard[name, "a"] = 10.0, {"lease": "standby"}
        trail._heard[name, "b"] = 10.0, {}
    assert trail.reasons(15.0) == [], "one instance of each is ready, and not silent yet"
    assert trail.reasons(15.001) == silent
    trail._heard["publisher", "b"] = 9.0, {}
    assert trail.reasons(15.0) == ["publisher: standby"]


async def test_the_health_port_answers_with_the_reasons(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail = Trail(scope.health, load({}))
    request = make_mocked_request("GET", "/")
    answer = await trail.answer(request)
    assert answer.status == 503
    assert answer.text is not None
    assert "publisher: no report was received" in answer.text
    monkeypatch.setattr(Trail, "reasons", lambda *_: [])
    answer = await trail.answer(request)
    assert (answer.status, answer.text) == (200, "ok\n")


async def test_reports_are_kept_by_instance_as_long_as_they_count(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribed: dict[str, Any] = {}

    async def subscribe(subject: str, cb: Any) -> None:
        subscribed[subject] = cb

    trail = Trail(scope.health, load({}))
    client: Any = SimpleNamespace(subscribe=subscribe)
    await trail.listen(client)
    assert len(subscribed) == len(FEEDERS)
    monkeypatch.setattr(
        participation,
        "decode_stats",
        lambda data: SimpleNamespace(instance=data, reasons={"a": "b"}),
    )
    trail._heard["publisher", "old"] = -1e9, {}
    for subject, hear in subscribed.items():
        await hear(SimpleNamespace(data=subject))
    assert {service for service, _ in trail._heard} == set(FEEDERS)
    assert ("publisher", "old") not in trail._heard


async def test_a_report_that_cannot_be_read_is_no_report(scope: Scope) -> None:
    trail = Trail(scope.health, load({}))
    trail._hear("publisher", b"?")
    assert trail._heard == {}


def page(token: str | None = None, host: str = "127.0.0.1") -> Page:
    variables = {"HEADRACE_HTTP_HOST": host}
    audit = {} if token is None else {"HEADRACE_AUDIT_TOKEN": token}
    return Page(load(variables), load_audit(audit))


def asked(host: str = "localhost", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("GET", "/audit", headers=CIMultiDict({"Host": host, **named}))


@pytest.mark.parametrize(
    ("served", "host", "headers", "local"),
    [
        ("127.0.0.1", "localhost", {}, True),
        ("127.0.0.1", "127.0.0.1:9096", {}, True),
        (ANYWHERE, "localhost", {}, False),
        ("127.0.0.1", "evil.example", {}, False),
        ("127.0.0.1", "localhost", {"Sec_Fetch_Site": "cross-site"}, False),
        ("127.0.0.1", "localhost", {"Sec_Fetch_Site": "same-origin"}, True),
    ],
)
async def test_without_a_token_only_this_machine_sees_rows(
    served: str, host: str, headers: dict[str, str], *, local: bool
) -> None:
    request = asked(host, **headers)
    assert (await page(host=served).page(request)).status == (200 if local else 403)
    if not local:
        assert (await page(host=served).changes(request)).status == 401
    assert page(host=served)._may(request) is local


async def test_with_a_token_everyone_who_has_it_sees_rows_and_nobody_else_does() -> None:
    made = page(token="secret", host=ANYWHERE)
    assert (await made.page(asked("elsewhere"))).status == 200, "the page has no rows"
    assert made._may(asked("elsewhere", Authorization="Bearer secret"))
    for header in ({}, {"Authorization": "Bearer wrong"}):
        assert (await made.changes(asked(**header))).status == 401
    local = page(token="secret")
    assert (await local.changes(asked())).status == 401, "also from this machine"


ID = "00000000-0000-8000-8000-000000000001"


def test_a_search_is_what_the_page_asks_for() -> None:
    fields = {"table": "t", "key": "1", "context": "a=1", "operation": "DELETE"}
    assert pages._search(fields) == Search(table="t", key="1", context="a=1", operation="DELETE")
    assert pages._search(dict.fromkeys((*fields, "since", "until", "below"), "")) == Search()
    bounds = {"since": "2026-01-01T00:00", "until": "2026-01-02T00:00+01:00", "below": f"5.2.{ID}"}
    assert pages._search(bounds) == Search(
        since=datetime(2026, 1, 1, tzinfo=UTC),
        until=datetime(2026, 1, 1, 23, tzinfo=UTC),
        below=TrailPosition(5, 2, ID),
    )
    assert pages._place(f"5..{ID}") == TrailPosition(5, None, ID)


async def test_a_search_that_cannot_be_read_or_answered_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answering(error: Exception | None) -> None:
        async def found(*_: object) -> list[Any]:
            if error is not None:
                raise error
            return [row()]

        monkeypatch.setattr(Page, "_found", found)

    answering(None)
    wrong = make_mocked_request("GET", "/audit/changes?below=x", headers={"Host": "localhost"})
    assert (await page().changes(wrong)).status == 400
    answering(SettingError("no"))
    assert (await page().changes(asked())).status == 400
    for error, reason in (
        (TimeoutError(), "the search took too long"),
        (asyncpg.PostgresError("cancelled"), "cancelled"),
    ):
        answering(error)
        refused = await page().changes(asked())
        assert refused.status == 503
        assert reason in str(refused.text)
    answering(None)
    answer = await page().changes(asked())
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.text is not None
    assert json.loads(answer.text)["changes"][0]["position"] == str(2**63 - 1)


def row(**fields: Any) -> dict[str, Any]:
    documents = {"before": "{}", "after": '{"a": 1}', "context": "{}", "exact": None}
    return {
        **documents,
        "position": 2**63 - 1,
        "ordinal": 2**53,
        "id": uuid.UUID(ID),
        **fields,
    }


def test_numbers_that_a_browser_cannot_hold_are_texts() -> None:
    assert pages._document(row()) == {
        "before": {},
        "after": {"a": 1},
        "context": {},
        "exact": None,
        "position": str(2**63 - 1),
        "ordinal": str(2**53),
        "id": ID,
    }
    assert pages._document(row(ordinal=None))["ordinal"] is None


async def test_the_page_has_two_routes() -> None:
    app = web.Application()
    page().extend(app)
    assert {route.resource.canonical for route in app.router.routes() if route.resource} == {
        "/audit",
        "/audit/changes",
    }


async def test_the_page_reads_by_a_connection_that_cannot_write_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    class Connection:
        async def execute(self, statement: str) -> None:
            calls.append(statement)

        async def fetch(self, statement: str, *arguments: object) -> list[Any]:
            calls.append(f"{statement.split(maxsplit=1)[0]} {arguments}")
            return [1]

        def terminate(self) -> None:
            calls.append("end")

    async def connect(*_: object) -> Connection:
        return Connection()

    monkeypatch.setattr(pages, "connect", connect)
    assert await page()._found(Search(table="t")) == [1]
    assert "default_transaction_read_only = on" in calls[0]
    assert calls[1:] == ["SELECT ('t',)", "end"]


@pytest.mark.parametrize(("interval_s", "silent_s"), [("1", 5.0), ("10", 30.0)])
async def test_a_feeder_is_silent_after_a_few_reports(
    scope: Scope, interval_s: str, silent_s: float
) -> None:
    trail = Trail(scope.health, load({"HEADRACE_STATS_INTERVAL_S": interval_s}))
    scope.health.started()
    for name in FEEDERS:
        trail._heard[name, "a"] = 0.0, {}
    assert trail.reasons(silent_s) == []
    assert len(trail.reasons(silent_s + 0.001)) == len(FEEDERS)


async def test_a_session_is_ready_runs_and_its_loss_is_noted(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = RetentionGapError.__new__(RetentionGapError)
    Exception.__init__(lost, "lost")
    for name, value in {
        "first_lost": 3,
        "last_lost": 7,
        "rewritten": False,
        "damaged": False,
    }.items():
        object.__setattr__(lost, name, value)
    runs: list[object] = []

    class Session:
        worked = True

        async def run(self, consumer: object) -> None:
            runs.append(consumer)
            if len(runs) == 2:
                raise lost

    @asynccontextmanager
    async def follow(_: object, subscription: Any, __: object) -> AsyncIterator[str]:
        assert (subscription.stream, subscription.state_bucket) == ("CDC", "headrace_state")
        yield "consumer"

    async def opened(*_: object) -> Session:
        return Session()

    monkeypatch.setattr(service, "follow", follow)
    monkeypatch.setattr(service, "opened", opened)
    destination: Any = Destination()
    destination.state = SimpleNamespace(position=1, stream_seq=2)
    made = writer(scope)
    await made._follow(destination)
    assert (runs, made._wrote, scope.health.reasons) == (["consumer"], True, {})
    assert destination.gaps == []
    await made._follow(destination)
    assert [seq for seq, _ in destination.gaps] == [7]


async def test_a_failed_session_is_named_until_the_next_follows(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaching(monkeypatch, Destination(), OSError("no route"))
    made = writer(scope)
    await pauses_of(scope, monkeypatch, made.run, 1)
    assert scope.health.reasons["destination"] == "no route"


@pytest.mark.parametrize("keep_days", ["", "30"])
async def test_the_service_runs_a_writer_measures_and_removes_only_if_that_was_asked_for(
    scope: Scope, monkeypatch: pytest.MonkeyPatch, keep_days: str
) -> None:
    spawned: list[str] = []
    calls: list[str] = []

    def spawn(_: Scope, name: str, work: Any) -> None:
        spawned.append(name)
        work.close()

    async def on_the_bus(_: Scope, __: object, work: Any, extend: Any) -> None:
        app = web.Application()
        extend(app)
        await work(SimpleNamespace())

    async def wrote(_: AuditWriter) -> None:
        calls.append("run")

    async def listen(*_: object) -> None:
        calls.append("listen")

    monkeypatch.setattr(Scope, "spawn", spawn)
    monkeypatch.setattr(service, "on_the_bus", on_the_bus)
    monkeypatch.setattr(AuditWriter, "run", wrote)
    monkeypatch.setattr(Trail, "listen", listen)
    monkeypatch.setattr(os, "environ", {"HEADRACE_AUDIT_KEEP_DAYS": keep_days} if keep_days else {})
    await service.run(scope, load({}))
    assert spawned == (["expire", "behind"] if keep_days else ["behind"])
    assert calls == ["run"]
    os.environ["HEADRACE_AUDIT_HEALTH_READY"] = "true"
    await service.run(scope, load({}))
    assert calls[1:] == ["listen", "run"]


async def test_older_auditors_ports_answer_beside_the_services_own(scope: Scope) -> None:
    ports = [free_port(), free_port()]
    audit = load_audit({"HEALTH_PORT": str(ports[0]), "METRICS_PORT": str(ports[1])})
    settings = load({"HEADRACE_HTTP_HOST": "127.0.0.1"})

    async def status(port: int, path: str) -> int:
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status

    async with service._zemis_ports(scope, settings, audit, None):
        assert await status(ports[0], "/any/path") == 200
        assert await status(ports[1], "/metrics") == 200
        assert await status(ports[1], "/any/path") == 404
    async with service._zemis_ports(scope, settings, audit, Trail(scope.health, settings)):
        assert await status(ports[0], "/any/path") == 503
        assert await status(ports[0], "/metrics") == 200


@pytest.mark.parametrize(
    ("variables", "name"),
    [({"PG_DB": "a", "PGDATABASE": "b"}, "a"), ({"PGDATABASE": "b"}, "b"), ({}, "c")],
)
async def test_the_audited_database_is_the_one_that_is_named_or_connected_to(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    ended: list[bool] = []

    class Connection:
        async def fetchval(self, _: str) -> str:
            return "c"

        def terminate(self) -> None:
            ended.append(True)

    async def connect(*_: object) -> Connection:
        return Connection()

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(os, "environ", variables)
    settings = load({key: value for key, value in variables.items() if key == "PG_DB"}).postgres
    assert await source.database_name(replace(settings, database=variables.get("PG_DB"))) == name
    assert ended == ([True] if name == "c" else [])
