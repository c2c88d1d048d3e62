"""The console acts only by a plan that still holds, once, for the right role, and logs it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace.testing.line import Line
from headrace.testing.servers import SessionServers
from tests.support.console_api import Console, check, described, frames_of, running_console
from tests.support.console_line import described_line

pytestmark = pytest.mark.asyncio(loop_scope="module")

CANARY = "canary-7f3a"
REDACTED = "canary-of-nobody"
TOKENS = {
    role: f"token-of-{role}"
    for role in ("viewer", "operator", "admin", "reader", "exporter", "copier")
}
RANK = {"viewer": 1, "operator": 2, "admin": 3}


def access_file(folder: Path) -> Path:
    def entry(name: str, role: str, values: str) -> str:
        digest = hashlib.sha256(TOKENS[name].encode()).hexdigest()
        rights = f'name = "{name}"\nrole = "{role}"\ntoken_sha256 = "{digest}"\nvalues = {values}'
        return f"[[access]]\n{rights}\n"

    file = folder / "access.toml"
    entries = [entry(role, role, "[]") for role in RANK]
    # Someone who may take a table away, of which they see nothing.
    exporter = entry("exporter", "viewer", '["open*"]') + 'export = ["open*", "secrets"]\n'
    readers = [entry("reader", "viewer", '["secret*"]'), entry("copier", "operator", '["secret*"]')]
    file.write_text("".join([*entries, *readers, exporter]))
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def line(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Line]:
    folder = tmp_path_factory.mktemp("line")
    async with described_line(session_servers, folder) as line:
        yield line


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(line: Line, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    given = {
        "HEADRACE_CONSOLE_ACCESS_FILE": str(access_file(tmp_path_factory.mktemp("access"))),
        "HEADRACE_CONSOLE_REDACT": "secrets.pin",
        "HEADRACE_CONSOLE_PROXIES": "10.9.9.9",
        "HEADRACE_CONSOLE_PROXY_SECRET": "of-the-proxy",
    }
    async with running_console(line.suite, **given) as console:
        yield console


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


async def acts(console: Console) -> list[dict[str, Any]]:
    _, body = await console.get("/acts", **bearer("admin"))
    found: list[dict[str, Any]] = body["items"]
    return found


async def until_paused(console: Console, *, paused: bool) -> None:
    async with asyncio.timeout(60):
        while True:
            _, body = await console.get("/overview", **bearer("admin"))
            if bool(body["paused"]) == paused:
                return
            await asyncio.sleep(0.1)


async def test_a_pause_acts_once_by_a_plan_that_holds(console: Console, line: Line) -> None:
    headers = bearer("operator")
    status, plan = await console.ask(
        "POST", "/suite/pause", body={"dry_run": True}, headers=headers
    )
    assert status == 200, plan
    assert await acts(console) == []
    again = {**headers, "Idempotency-Key": "double-click"}
    body = {"plan": plan["plan"], "reason": "a test"}
    both = await asyncio.gather(
        *(console.ask("POST", "/suite/pause", body=body, headers=again) for _ in range(2))
    )
    assert [status for status, _ in both] == [202, 202], both
    assert both[0][1] == both[1][1]
    await until_paused(console, paused=True)
    # The publisher itself says that it is paused.
    await line.suite.logged("publisher", "paused")
    (entry,) = await acts(console)
    assert (entry["act"], entry["result"], entry["user"]) == ("pause", "done", "operator")
    assert entry["reason"] == "a test"
    # The plan is used up.
    status, problem = await console.ask("POST", "/suite/pause", body=body, headers=headers)
    assert (status, problem["code"]) == (409, "stale_plan")
    # A plan whose facts have changed is refused.
    _, old = await console.ask("POST", "/suite/resume", body={"dry_run": True}, headers=headers)
    _, new = await console.ask("POST", "/suite/resume", body={"dry_run": True}, headers=headers)
    status, _ = await console.ask(
        "POST", "/suite/resume", body={"plan": new["plan"]}, headers=headers
    )
    assert status == 202
    status, problem = await console.ask(
        "POST", "/suite/resume", body={"plan": old["plan"]}, headers=headers
    )
    assert (status, problem["code"]) == (409, "stale_plan")
    await until_paused(console, paused=False)
    assert [one["act"] for one in await acts(console)] == ["resume", "pause"]


async def test_an_act_is_listed_once_however_the_log_is_cut_into_pages(console: Console) -> None:
    whole = [one["id"] for one in await acts(console)]
    assert whole
    found: list[str] = []
    cursor = ""
    while True:
        _, page = await console.get(f"/acts?limit=1{cursor}", **bearer("admin"))
        found += [one["id"] for one in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == whole


async def test_requests_of_other_sites_and_forged_ones_are_refused(console: Console) -> None:
    # Before the tests that are refused more often than the log takes in a minute.
    refused = [
        ({"Sec-Fetch-Site": "cross-site"}, "GET", "/overview"),
        ({"Host": "rebound.example"}, "GET", "/overview"),
        ({"Origin": "null"}, "POST", "/suite/pause"),
        ({"Origin": "https://elsewhere.example"}, "POST", "/suite/pause"),
    ]
    for headers, method, path in refused:
        status, body = await console.ask(
            method, path, body={} if method == "POST" else None, headers=bearer("admin") | headers
        )
        assert (status, body["code"] in {"host", "origin"}) == (403, True), (headers, body)
    # No bearer token: as a page would send it.
    status, body = await console.ask("POST", "/suite/pause", body={}, headers={"X-Headrace": "0"})
    assert (status, body["code"]) == (403, "origin")
    forged = {"X-Forwarded-User": "ana", "X-Headrace-Proxy-Secret": "of-the-proxy"}
    status, body = await console.get("/overview", **forged)
    assert (status, body["code"]) == (403, "origin")
    entries = [one for one in await acts(console) if one["result"] == "refused"]
    assert "POST /api/v1/suite/pause" in {one["act"] for one in entries}
    assert not [one for one in await acts(console) if one["result"] == "begun"]


async def test_each_role_has_its_endpoints_and_no_others(console: Console) -> None:
    # The right `sql` decides about statements.
    least = {"/acts": "admin", "/sql/runs": "viewer"}
    paths = described()["paths"]
    for path, operations in paths.items():
        for method in operations:
            place = path.removeprefix("/api/v1")
            if method == "parameters" or place in {"/me", "/session", "/openapi.yaml", "/live"}:
                continue
            needed = least.get(place, "operator" if method == "post" else "viewer")
            url = place.replace("{token}", "nosuch").replace("{position}", "0-0-0")
            url = url.replace("{lsn}", "0-0").replace("{id}", "nosuch").replace("{name}", "nosuch")
            for role, rank in RANK.items():
                headers = {**bearer(role), "Content-Type": "application/json"}
                async with console.http.request(
                    method.upper(), f"{console.base}/api/v1{url}", data=b"{}", headers=headers
                ) as answer:
                    # A missing right to values is another refusal.
                    text = await answer.text()
                    refused = answer.status == 403 and '"code":"role"' in text
                assert refused == (rank < RANK[needed]), (method, place, role, answer.status)
            async with console.http.request(
                method.upper(),
                f"{console.base}/api/v1{url}",
                data=b"{}",
                headers={"X-Headrace": "1", "Content-Type": "application/json"},
            ) as answer:
                assert answer.status == 401, (method, place)


async def test_no_value_is_shown_or_found_without_the_right(console: Console, line: Line) -> None:
    await line.execute("CREATE TABLE secrets (id text PRIMARY KEY, name text, pin text)")
    stored = await line.rows(f"INSERT INTO secrets VALUES ('{CANARY}', '{CANARY}', '{REDACTED}')")
    tx = stored[0].payload["tx"]
    lsn = f"{tx['lsn'] >> 32:X}-{tx['lsn'] & 0xFFFFFFFF:X}"
    paths = [
        "/events",
        f"/events/{lsn}-{tx['seq']}?full=true",
        f"/events/{lsn}-{tx['seq']}/trace",
        f"/transactions/{lsn}",
        f"/events?table=secrets&key={CANARY}",
        f"/events?table=secrets&where=name={CANARY}",
        f"/events?table=secrets&text={CANARY}",
        f"/events?table=secrets&where=pin={REDACTED}",
        "/tables",
        "/overview",
        "/snapshots",
    ]
    for role in TOKENS:
        for path in paths:
            async with console.http.get(
                f"{console.base}/api/v1{path}", headers=bearer(role)
            ) as answer:
                text = await answer.text()
            assert answer.status == 200, (path, text)
            assert REDACTED not in text, (role, path)
            if role not in {"reader", "copier"}:
                # The filter of the request is not repeated in the answer either.
                assert CANARY not in text, (role, path)
                assert '"text":"canary' not in text
    found: dict[str, Any]
    _, found = await console.get(f"/events?table=secrets&key={CANARY}", **bearer("reader"))
    assert len(found["items"]) == 1
    kinds = {one["name"]: one["after"]["kind"] for one in found["items"][0]["columns"]}
    assert kinds == {"id": "text", "name": "text", "pin": "redacted"}
    _, found = await console.get("/events?table=secrets&op=INSERT", **bearer("admin"))
    assert {one["after"]["kind"] for one in found["items"][0]["columns"]} == {"hidden", "redacted"}
    _, found = await console.get(f"/events?table=secrets&text={CANARY}", **bearer("admin"))
    assert found["items"] == []
    assert CANARY not in line.suite.log("console")


async def test_rows_of_a_snapshot_are_chosen_only_by_those_who_see_the_values(
    console: Console, line: Line
) -> None:
    await line.execute(
        "CREATE TABLE secret_codes (id text PRIMARY KEY, code text)",
        "CREATE TABLE IF NOT EXISTS secrets (id text PRIMARY KEY, name text, pin text)",
    )
    await line.rows(
        "INSERT INTO secret_codes VALUES ('a', 'b')", "INSERT INTO secrets VALUES ('a')"
    )

    async def planned(who: str, token: str, conditions: object) -> tuple[int, str]:
        body = {"token": token, "filter": conditions, "dry_run": True}
        if conditions is None:
            del body["filter"]
        async with asyncio.timeout(60):
            while True:
                status, found = await console.ask(
                    "POST", "/snapshots", body=body, headers=bearer(who)
                )
                # Its schema is on its way.
                if status != 404:
                    return status, found.get("code", "")
                await asyncio.sleep(0.1)

    guess = [["code", "=", CANARY]]
    assert await planned("operator", "secret_codes", None) == (200, "")
    # The number of rows would say whether the guess is right.
    assert await planned("operator", "secret_codes", guess) == (403, "values")
    assert await planned("copier", "secret_codes", guess) == (200, "")
    assert await planned("copier", "secrets", [["pin", "<", REDACTED]]) == (403, "values")
    assert await planned("copier", "secrets", [["name", "is null"]]) == (200, "")
    assert await planned("copier", "secrets", {"pin": REDACTED}) == (400, "invalid")
    for columns in (5, "id", [1], [], ["id", "id"], {"id": 1}):
        body = {"token": "secrets", "columns": columns, "dry_run": True}
        status, found = await console.ask(
            "POST", "/snapshots", body=body, headers=bearer("operator")
        )
        assert (status, found["code"]) == (400, "invalid"), columns


async def test_a_file_has_what_the_page_shows_of_tables_that_the_right_covers(
    console: Console, line: Line
) -> None:
    await line.execute("CREATE TABLE opened (id int PRIMARY KEY, note text)")
    await line.execute("CREATE TABLE closed (id int PRIMARY KEY, note text)")
    await line.execute("CREATE TABLE IF NOT EXISTS secrets (id text PRIMARY KEY, pin text)")
    await line.rows(
        "INSERT INTO opened VALUES (1, '=1+1'), (2, NULL)",
        "INSERT INTO closed VALUES (1, 'of nobody else')",
        f"INSERT INTO secrets (id, pin) VALUES ('{CANARY}-2', '{REDACTED}')",
    )

    async def file(query: str, user: str = "exporter") -> tuple[int, str, dict[str, str]]:
        url = f"{console.base}/api/v1/events/export?{query}"
        async with console.http.get(url, headers=bearer(user)) as answer:
            return answer.status, await answer.text(), dict(answer.headers)

    status, text, headers = await file("format=ndjson&op=INSERT")
    assert status == 200, text
    assert headers["Content-Disposition"].startswith("attachment")
    rows = [json.loads(one) for one in text.splitlines()]
    assert {one["table"] for one in rows} <= {"opened", "secrets"}
    assert int(headers["X-Headrace-Left-Out"]) >= 1
    notes = [one["after"]["note"] for one in rows if one["table"] == "opened"]
    assert sorted(notes, key=str) == ["=1+1", None]
    (secret,) = [one["after"] for one in rows if one["table"] == "secrets" and one["key"] is None][
        :1
    ]
    assert set(secret.values()) <= {"[hidden]", "[redacted]"}
    assert CANARY not in text
    assert REDACTED not in text
    status, text, _ = await file("format=csv&table=opened")
    assert '""note"": ""' not in text
    assert text.splitlines()[0].startswith("position,at,operation,schema,table,xid,key")
    for user in ("viewer", "reader", "admin"):
        status, text, _ = await file("format=csv", user)
        assert (status, json.loads(text)["code"]) == (403, "export"), user
    assert (await file("format=xlsx"))[0] == 400
    exports = [one for one in await acts(console) if one["act"] == "export"]
    assert [one["detail"].partition(" rows, ")[2] for one in reversed(exports)] == [
        "ndjson, filters: op",
        "csv, filters: table",
    ]


async def test_a_token_becomes_a_session_that_can_end(console: Console) -> None:
    status, body = await console.ask("POST", "/session", body={"token": "wrong"})
    assert (status, body["code"]) == (401, "sign_in")
    async with console.http.post(
        f"{console.base}/api/v1/session",
        json={"token": TOKENS["viewer"]},
        headers={"X-Headrace": "1"},
    ) as answer:
        assert answer.status == 200
        cookie = answer.headers["Set-Cookie"]
    for part in ("HttpOnly", "Secure", "SameSite=Strict"):
        assert part in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    status, me = await console.get("/me", **session)
    assert (me["user"], me["role"]) == ("viewer", "viewer")
    assert TOKENS["viewer"] not in cookie
    live = f"{console.base}/api/v1/live?topics=overview,events"
    async with console.http.get(live, headers=session) as stream:
        frames = frames_of(stream)
        assert (await anext(frames))[0] == "hello"
        async with console.http.delete(
            f"{console.base}/api/v1/session", headers={**session, "X-Headrace": "1"}
        ) as answer:
            assert answer.status == 204
        # It ends, and its last frame names the reason.
        async with asyncio.timeout(60):
            names = [(name, body.get("code")) async for name, body in frames]
        assert names[-1] == ("bye", "sign_in")
    async with console.http.get(live, headers=session) as answer:
        assert answer.status == 401
    _, me = await console.get("/me", **session)
    assert me["user"] is None


async def test_a_trace_agrees_with_the_stream_and_the_slot(console: Console, line: Line) -> None:
    await line.execute("CREATE TABLE traced (id int PRIMARY KEY)")
    stored = await line.rows("INSERT INTO traced SELECT generate_series(1, 5)")
    tx = stored[2].payload["tx"]
    place = f"{tx['lsn'] >> 32:X}-{tx['lsn'] & 0xFFFFFFFF:X}-{tx['seq']}"
    async with asyncio.timeout(60):
        while True:
            status, body = await console.get(
                f"/events/{place}/trace", "/events/{position}/trace", **bearer("reader")
            )
            assert status == 200, body
            stations = {one["kind"]: one for one in body["stations"]}
            if stations["wal"]["reached"] == "yes":
                break
            await asyncio.sleep(0.2)
    assert stations["stream"]["facts"]["sequence"] == str(stored[2].seq)
    assert stations["commit"]["facts"]["xid"] == str(tx["xid"])
    assert stations["stream"]["at"] >= stations["commit"]["at"]
    # The oracle is PostgreSQL's own view of the slot.
    confirmed = await line.database.fetch(
        "SELECT confirmed_flush_lsn > $1::text::pg_lsn AS yes FROM pg_replication_slots"
        " WHERE slot_name = $2",
        f"{tx['lsn'] >> 32:X}/{tx['lsn'] & 0xFFFFFFFF:X}",
        line.source,
    )
    assert confirmed[0]["yes"]


async def test_a_trace_as_a_file_has_what_the_page_shows_and_takes_the_right(
    console: Console, line: Line
) -> None:
    # The first part of the name is what the right `export` covers.
    await line.execute("CREATE TABLE opened_trace (id int PRIMARY KEY, note text)")
    await line.execute("CREATE TABLE closed_trace (id int PRIMARY KEY)")
    await line.execute("CREATE TABLE IF NOT EXISTS secrets (id text PRIMARY KEY, pin text)")
    long = "a long value " * 10_000
    await line.rows(
        f"INSERT INTO opened_trace VALUES (1, '{long}')",
        "INSERT INTO closed_trace VALUES (1)",
        f"INSERT INTO secrets (id, pin) VALUES ('{CANARY}-3', '{REDACTED}')",
    )

    async def traced(table: str, user: str = "exporter") -> tuple[int, str, str]:
        _, found = await console.get(f"/events?table={table}&op=INSERT", **bearer(user))
        place = re.sub(r"[/+]", "-", found["items"][0]["position"])
        url = f"{console.base}/api/v1/events/{place}/trace/export"
        async with console.http.get(url, headers=bearer(user)) as answer:
            body = await answer.text()
            path = "/api/v1/events/{position}/trace/export"
            check(described(), "GET", path, answer.status, json.loads(body))
            return answer.status, body, answer.headers.get("Content-Disposition", "")

    status, text, name = await traced("opened_trace")
    assert status == 200, text
    assert re.fullmatch(r'attachment; filename="headrace-trace-[0-9A-F-]+\.json"', name)
    found = json.loads(text)
    assert [one["kind"] for one in found["stations"]][:2] == ["commit", "wal"]
    (note,) = [one["after"] for one in found["event"]["columns"] if one["name"] == "note"]
    assert note["text"] == long
    _, text, _ = await traced("secrets")
    assert CANARY not in text
    assert REDACTED not in text
    kinds = {one["after"]["kind"] for one in json.loads(text)["event"]["columns"]}
    assert kinds == {"hidden", "redacted"}
    for table, user in (("closed_trace", "exporter"), ("opened_trace", "admin")):
        status, text, _ = await traced(table, user)
        assert (status, json.loads(text)["code"]) == (403, "export"), user
    logged = [(one["act"], one["object"], one["result"]) for one in await acts(console)]
    assert logged.count(("export", "trace", "done")) == 2
    assert CANARY not in json.dumps(await acts(console))


async def test_tokens_can_not_be_guessed_with_many_requests(console: Console) -> None:
    # The last test: guesses lock their address for a minute.
    guesses = [{"Authorization": f"Bearer guess-{number}"} for number in range(20)]
    answers = [await console.get("/events", **guess) for guess in guesses]
    codes = [body["code"] for _, body in answers]
    assert codes[:2] == ["sign_in"] * 2
    assert set(codes[10:]) == {"busy"}
    status, _ = await console.get("/events", **bearer("admin"))
    assert status == 429
