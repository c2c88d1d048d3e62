"""The console's sinks: what the stream and a real receiver say, acts that the sink's process follows,
and nothing of a refused record without the right to its table.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from nats.aio.client import Client

from headrace.sinks.configuration import parse_sinks
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.console_api import Console, running_console
from tests.support.exactly_once import environment
from tests.support.sinks import sink_process
from tests.support.webhook_receiver import SECRET, Receiver, serve, status

pytestmark = pytest.mark.timeout(300)
WAIT_S = 60.0
CANARY = "canary-of-the-shop"
SINK = """[[sink]]
name = "hook"
to = "http://127.0.0.1:{port}/hook?key=a-secret-of-the-address"
on_error = "park"
operations = ["insert", "update"]
tables = ["shop"]
batch = {{wait_ms = 50}}
options = {{secret = "env:WEBHOOK_SECRET", allow_networks = ["127.0.0.0/8"], allow_http = true}}
"""
ACCESS = """[[access]]
name = "operator"
role = "operator"
token_sha256 = "{operator}"
values = ["shop"]
[[access]]
name = "viewer"
role = "viewer"
token_sha256 = "{viewer}"
[[access]]
name = "blind"
role = "operator"
token_sha256 = "{blind}"
[[access]]
name = "admin"
role = "admin"
token_sha256 = "{admin}"
"""
USERS = ("operator", "viewer", "blind", "admin")


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


@dataclass
class World:
    """A sink that posts to a receiver of the test, and a console."""

    console: Console
    database: Database
    receiver: Receiver
    nats_url: str

    @property
    def accepted(self) -> list[int]:
        return [body["data"]["id"] for body, _ in self.receiver.accepted]

    async def sink(self, user: str = "operator") -> dict[str, Any]:
        code, body = await self.console.get("/sinks/hook", "/sinks/{name}", **bearer(user))
        assert code == 200, body
        return body

    async def reached(self, query: str) -> str:
        """How far the sink is with an event, as its trace shows it once there is an answer."""
        async with asyncio.timeout(WAIT_S):
            while True:
                _, found = await self.console.get(f"/events?{query}", **bearer("operator"))
                for event in found["items"]:
                    place = re.sub(r"[/+]", "-", event["position"])
                    _, trace = await self.console.get(
                        f"/events/{place}/trace", "/events/{position}/trace", **bearer("operator")
                    )
                    # Telemetry hears of the sink a moment after its start.
                    for station in trace["stations"]:
                        if station["kind"] == "sink" and station["reached"] != "no":
                            return str(station["reached"])
                await asyncio.sleep(0.1)

    async def log_end(self) -> int:
        """Where PostgreSQL's log ends, according to PostgreSQL."""
        (row,) = await self.database.fetch("SELECT pg_current_wal_insert_lsn() - '0/0' AS lsn")
        return int(row["lsn"])

    async def stands_at(self, least: int) -> int:
        """The sink's LSN on the waterline, once it is no less than this."""
        async with asyncio.timeout(WAIT_S):
            while True:
                _, body = await self.console.get("/waterline", **bearer("operator"))
                for point in body["waterline"]["points"]:
                    if point["kind"] == "sink" and point["lsn"]:
                        high, low = (int(part, 16) for part in point["lsn"].split("/"))
                        if (found := (high << 32) | low) >= least:
                            assert point["behind_bytes"] is not None
                            return found
                await asyncio.sleep(0.1)

    async def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    found = await self.sink()
                    if holds(found):
                        return found
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{what}: {found}") from None

    async def planned(
        self, name: str, status: int, user: str = "operator", **body: Any
    ) -> dict[str, Any]:
        """The plan of an act, or the problem with this status."""
        path, template = f"/sinks/hook/{name}", f"/sinks/{{name}}/{name}"
        code, found = await self.console.ask(
            "POST", path, template, body={**body, "dry_run": True}, headers=bearer(user)
        )
        assert code == status, found
        return found

    async def act(self, name: str, **body: Any) -> dict[str, Any]:
        """Plan an act, then do it."""
        path, template = f"/sinks/hook/{name}", f"/sinks/{{name}}/{name}"
        headers = bearer("operator")
        plan = await self.planned(name, 200, **body)
        code, done = await self.console.ask(
            "POST", path, template, body={**body, "plan": plan["plan"]}, headers=headers
        )
        assert code == 202, done
        return plan


@contextlib.asynccontextmanager
async def world(own_postgres: OwnPostgres, own_nats: OwnNats, folder: Path) -> AsyncIterator[World]:
    postgres, server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute(
        "CREATE TABLE shop (id int PRIMARY KEY, note text);"
        "CREATE TABLE elsewhere (id int PRIMARY KEY);"
        "CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    receiver = Receiver()
    runner = await serve(receiver)

    async def picky(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["data"]["note"] == CANARY:
            return await status(422)(request)
        receiver.accepted.append((body, dict(request.headers)))
        return web.Response(status=204)

    receiver.answers = [picky] * 1000
    config = folder / "headrace.toml"
    config.write_text(SINK.format(port=receiver.port))
    access = folder / "access.toml"
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in USERS}
    access.write_text(ACCESS.format(**hashes))
    settings = environment(postgres, server, "event")
    given = {
        "HEADRACE_CONFIG": str(config),
        "HEADRACE_CONSOLE_ACCESS_FILE": str(access),
        "WEBHOOK_SECRET": SECRET,
    }
    async with Suite(settings, folder) as suite:
        await suite.logged("wal-reader", "epoch_opened")
        await suite.start("schema-publisher")
        async with (
            sink_process(settings, config, "hook", WEBHOOK_SECRET=SECRET) as process,
            running_console(suite, **given) as console,
        ):
            await process.logged("sink_follows")
            yield World(console, database, receiver, server.url)
    await database.close()
    await runner.cleanup()


async def test_a_sink_is_shown_paused_resumed_reset_and_its_dead_letters_delivered(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with world(own_postgres, own_nats, tmp_path) as it:
        await it.database.execute(f"INSERT INTO shop VALUES (1, 'good'), (2, '{CANARY}')")
        found = await it.until(lambda one: one["sink"]["letters"] == "1", "a record is parked")
        (letter,) = found["letters"]
        assert letter["reason"] == "it answered 422"
        await it.database.execute("INSERT INTO elsewhere VALUES (1)")
        # The sink's position is beyond all three.
        assert await it.reached("table=shop&op=INSERT&key=2") == "refused"
        assert await it.reached("table=shop&op=INSERT&key=1") == "yes"
        assert await it.reached("table=elsewhere") == "filtered"
        assert letter["destination"] == "public.shop"
        assert letter["event"]["key"] == {"id": "2"}
        note = next(one for one in letter["event"]["columns"] if one["name"] == "note")
        assert note["after"] == {"kind": "text", "text": CANARY}
        assert [one["table"] for one in found["tables"]] == ["shop"]
        assert found["sink"]["to"] == f"http://127.0.0.1:{it.receiver.port}/hook"

        # Someone without the right to the table learns that there is one, and nothing of it.
        viewer = await it.sink("viewer")
        assert viewer["sink"]["letters"] == "1"
        assert (viewer["letters"][0]["reason"], viewer["letters"][0]["destination"]) == (None, None)
        assert CANARY not in str(viewer)
        assert "a-secret-of-the-address" not in str(await it.sink())

        # All is committed up to the end of the stream, which NATS itself names.
        end = await last_sequence(it)
        await it.until(lambda one: one["sink"]["sequence"] == str(end), f"it reaches {end}")

        plan = await it.act("pause")
        assert plan["command"] == "headrace sinks pause hook"
        await it.until(lambda one: one["sink"]["state"] == "paused", "it is paused")
        # The sink stands before the transaction that it lacks.
        began = await it.log_end()
        await it.database.execute("INSERT INTO shop VALUES (3, 'good')")
        ended = await it.log_end()
        assert began <= await it.stands_at(began) <= ended
        await it.until(lambda one: one["sink"]["behind_messages"] != "0", "it falls behind")
        assert 3 not in it.accepted
        await it.act("resume")
        await it.until(lambda one: one["sink"]["behind_messages"] == "0", "it continues")
        assert it.accepted.count(3) == 1
        await it.stands_at(ended)

        it.receiver.answers = []
        await it.act("replay", id=letter["id"])
        await it.until(lambda one: one["sink"]["letters"] == "0", "the record is delivered")
        assert it.accepted.count(2) == 1

        before = it.accepted.count(1)
        await it.act("reset", to="start")
        async with asyncio.timeout(WAIT_S):
            while it.accepted.count(1) == before:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.1)


async def test_a_dead_letter_is_corrected_and_delivered_and_another_one_dropped(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with world(own_postgres, own_nats, tmp_path) as it:
        await it.database.execute(f"INSERT INTO shop VALUES (1, '{CANARY}'), (2, '{CANARY}')")
        found = await it.until(lambda one: one["sink"]["letters"] == "2", "both are parked")
        by_key = {one["event"]["key"]["id"]: one["id"] for one in found["letters"]}
        first, second = by_key["1"], by_key["2"]

        columns = {"note": "repaired"}
        # Users without the right to the values can't change them, in any role.
        problem = await it.planned("correct", 403, "blind", id=first, columns=columns)
        assert problem["code"] == "values"
        problem = await it.planned("correct", 403, "viewer", id=first, columns=columns)
        assert problem["code"] == "role"
        for wrong in ({"id": "9"}, {"nosuch": "x"}, {}):
            await it.planned("correct", 400, id=first, columns=wrong)
        await it.planned("correct", 404, id="nosuch", columns=columns)

        plan = await it.act("correct", id=first, columns=columns)
        assert plan["command"] == f"headrace dead-letters correct hook {first} --set note=repaired"
        letters = (await it.sink())["letters"]
        repaired = next(one for one in letters if one["id"] == first)
        assert (repaired["corrected"], repaired["corrected_by"]) == (["note"], "operator")
        note = next(one for one in repaired["event"]["columns"] if one["name"] == "note")
        assert note["after"] == {"kind": "text", "text": "repaired"}
        assert it.accepted == []

        plan = await it.act("drop", id=second)
        assert "permanently" in plan["summary"]
        await it.planned("drop", 404, id=second)
        await it.act("replay")
        await it.until(lambda one: one["sink"]["letters"] == "0", "the other one is delivered")
        assert [body["data"] for body, _ in it.receiver.accepted] == [{"id": 1, "note": "repaired"}]
        # PostgreSQL's row is as it was.
        assert await it.database.fetchval("SELECT note FROM shop WHERE id = 1") == CANARY

        code, log = await it.console.get("/acts", **bearer("admin"))
        assert code == 200
        done = [(one["act"], one["object"]) for one in log["items"] if one["result"] == "done"]
        assert ("correct-dead-letter", f"hook/{first}") in done
        assert ("drop-dead-letter", f"hook/{second}") in done
        assert "repaired" not in str(log)
        assert CANARY not in str(log)


async def test_the_connection_of_a_sink_is_tested_and_a_new_one_is_checked_before_it_is_in_the_file(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with world(own_postgres, own_nats, tmp_path) as it:
        headers = bearer("operator")
        await it.act("test")
        assert it.accepted == []

        async def draft(text: str) -> dict[str, Any]:
            code, found = await it.console.ask(
                "POST", "/sinks/drafts", body={"text": text}, headers=headers
            )
            assert code == 200, found
            return found

        before = (tmp_path / "headrace.toml").read_text()
        good = '[[sink]]\nname = "files"\nto = "file:///srv/files?password=x"\ntables = ["shop"]\n'
        found = await draft(good)
        assert found["problem"] is None
        (planned,) = found["sinks"]
        assert (planned["name"], planned["tables"]) == ("files", ["public.shop"])
        assert planned["to"] == "file:///srv/files"
        assert "headrace sinks plan" in found["commands"]
        # The same file with the text is what the command line accepts.
        assert set(parse_sinks(f"{before}\n{good}", "headrace.toml", {})) == {"hook", "files"}
        refused = {
            '[[sink]]\nname = "hook"\nto = "file:///x"': "another sink",
            '[[sink]]\nname = "a"\nto = "nosuch://x"': "no sink writes to",
            '[[sink]]\nname = "a"\nto = "pyth\\u006fn:os:getcwd"': "does not load classes",
            'to = "file:///y"': "Cannot overwrite",
            'snapshot = "initial"\n[[sink]]\nname = "a"\nto = "file:///x"': "adds no sink",
            '[[sink]]\nname = "a"\nto = "file:///x"\noptions = {password = "p"}': "is a secret",
            "[[sink]": "",
        }
        for text, words in refused.items():
            found = await draft(text)
            assert found["problem"], text
            assert words in found["problem"], found
            assert found["sinks"] == []
        assert (tmp_path / "headrace.toml").read_text() == before
        code, _ = await it.console.ask(
            "POST", "/sinks/drafts", body={"text": good}, headers=bearer("viewer")
        )
        assert code == 403


async def test_an_act_on_a_sink_takes_its_name_a_place_and_a_plan_that_holds(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with world(own_postgres, own_nats, tmp_path) as it:
        headers = bearer("operator")

        async def refused(path: str, template: str, body: dict[str, Any]) -> tuple[int, str]:
            code, problem = await it.console.ask("POST", path, template, body=body, headers=headers)
            return code, problem["code"]

        for name in ("nosuch", "hook%2E%2E"):
            assert await refused(
                f"/sinks/{name}/pause", "/sinks/{name}/pause", {"dry_run": True}
            ) == (404, "not_found")
        place = ("/sinks/hook/reset", "/sinks/{name}/reset")
        assert await refused(*place, {"dry_run": True}) == (400, "invalid")
        assert await refused(*place, {"dry_run": True, "to": "end"}) == (400, "invalid")
        replay = ("/sinks/hook/replay", "/sinks/{name}/replay")
        assert await refused(*replay, {"dry_run": True}) == (404, "not_found")
        # The state changes between the plan and the act.
        path, template = "/sinks/hook/pause", "/sinks/{name}/pause"
        _, plan = await it.console.ask(
            "POST", path, template, body={"dry_run": True}, headers=headers
        )
        await it.act("pause")
        assert await refused(path, template, {"plan": plan["plan"]}) == (409, "stale_plan")


async def last_sequence(it: World) -> int:
    """The end of the stream."""
    client = Client()
    await client.connect(it.nats_url)
    try:
        return int((await client.jetstream().stream_info("CDC")).state.last_seq)
    finally:
        await client.close()


async def test_without_the_sinks_file_the_page_names_the_setting(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    settings = environment(postgres, server, "event")
    missing = str(tmp_path / "nosuch.toml")
    async with (
        Suite(settings, tmp_path) as suite,
        running_console(suite, HEADRACE_CONFIG=missing) as console,
    ):
        async with asyncio.timeout(WAIT_S):
            while (found := await console.get("/sinks"))[0] != 200:  # noqa: ASYNC110  # NATS
                await asyncio.sleep(0.2)
        body = found[1]
        assert body["items"] == []
        assert missing in body["configuration"]["problem"]
        assert "HEADRACE_CONFIG" in body["configuration"]["problem"]
    await database.close()
