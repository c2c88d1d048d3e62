"""A sink in Valkey, read by Valkey's own client: rows as hashes, changes as streams."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from valkey.asyncio import Valkey

from headrace.consumer import Transaction, Watermark
from headrace.errors import SettingError
from headrace.lsn import ORIGIN
from headrace.sinks.bootstrap import Copy
from headrace.sinks.port import (
    SEEN,
    RefusedError,
    SinkAwayError,
    SinkError,
    SinkFencedError,
    SinkOptions,
)
from headrace.sinks.routing import RoutedTransaction, Router
from headrace.sinks.valkey import ValkeySink
from headrace.testing.certificates import Authority
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers
from headrace.testing.valkey import ValkeyServer
from tests.support.sink_records import event, inserts, marks, of_events, transaction
from tests.support.tls_tunnel import tls_tunnel


class Place:
    """The keys of one sink."""

    def __init__(self, server: ValkeyServer, name: str, client: Any) -> None:
        self.server = server
        self.name = name
        self.client = client

    def sink(self, **options: Any) -> ValkeySink:
        return ValkeySink(
            SinkOptions(self.name, f"valkey://127.0.0.1:{self.server.port}", "", options)
        )

    async def apply(self, *transactions: RoutedTransaction, **options: Any) -> None:
        sink = self.sink(**options)
        await sink.open()
        await sink.write(transactions)
        await sink.commit(marks(*transactions))
        await sink.close()

    async def rows(self, table: str = "public.users") -> dict[str, dict[str, str]]:
        index = f"{{{self.name}}}:{table}"
        members = sorted(one.decode() for one in await self.client.smembers(index))
        found = {}
        for member in members:
            values = await self.client.hgetall(f"{index}:{member}")
            found[member] = {name.decode(): value.decode() for name, value in values.items()}
        return found

    async def keys(self) -> list[str]:
        found = [one.decode() async for one in self.client.scan_iter(f"{{{self.name}}}:*")]
        return sorted(key.partition(":")[2] for key in found)

    async def entries(self) -> list[Mapping[bytes, bytes]]:
        found = await self.client.xrange(f"{{{self.name}}}:public.users")
        return [fields for _, fields in found]


@pytest.fixture
async def place(valkey: ValkeyServer, names: Names) -> AsyncIterator[Place]:
    client = Valkey(port=valkey.port)
    yield Place(valkey, names.other("sink"), client)
    await client.aclose()


async def test_rows_are_hashes_after_a_commit_and_not_before_it(place: Place) -> None:
    sink = place.sink()
    assert await sink.open() == {}
    both = (inserts(10, 1, name="Ada"), inserts(20, 2, name=None))
    await sink.write(both)
    assert await place.rows() == {}
    await sink.commit(marks(*both))
    await sink.close()
    assert await place.rows() == {"1": {"id": "1", "name": "Ada"}, "2": {"id": "2"}}
    again = place.sink()
    assert await again.open() == marks(*both)
    await again.close()


async def test_updates_deletes_and_truncates(place: Place) -> None:
    await place.apply(
        inserts(10, 1, 2, name="Ada", note="kept"),
        transaction(20, ("UPDATE", {"id": 1, "name": None}), ("DELETE", {"id": 2})),
    )
    assert await place.rows() == {"1": {"id": "1", "note": "kept"}}
    await place.apply(transaction(30, ("INSERT", {"id": 1, "name": "new"})))
    assert await place.rows() == {"1": {"id": "1", "name": "new"}}
    await place.apply(transaction(40, ("TRUNCATE", {})))
    assert await place.keys() == ["headrace"]


@pytest.mark.parametrize("prefix", ["", "a*[\\\\?"])
async def test_new_copies_of_all_tables_begin_without_the_former_rows(
    place: Place, prefix: str
) -> None:
    await place.apply(inserts(10, 1, 2, name="Ada"), prefix=prefix)
    other = place.sink(prefix=f"{place.name} of another")
    await other.open()
    await other.write([inserts(10, 3)])
    await other.commit({})
    await other.close()
    sink = place.sink(prefix=prefix)
    await sink.open()
    lost = event(10, 0, "GAP", {}, last=True, reason="sink_beyond_retention")
    await sink.write([of_events(lost)])
    await sink.commit({SEEN: Watermark(ORIGIN, 5), Copy("users").lane: Copy("users").mark})
    first = Copy("users", "snap-1", 20, 0, 2)
    await sink.commit({first.lane: first.mark})
    await sink.write([inserts(20, 2, name="Bob")])
    half = replace(first, chunks_done=1)
    await sink.commit({half.lane: half.mark})
    await sink.close()
    index = f"{{{prefix or place.name}}}:public.users"
    assert {*await place.client.smembers(index)} == {b"2"}
    assert await place.client.exists(f"{index}:1") == 0
    assert await place.client.exists(f"{{{place.name} of another}}:public.users:3") == 1
    for key in (index, f"{index}:2"):
        await place.client.delete(key)


async def test_a_changed_key_keeps_large_columns_that_the_update_does_not_contain(
    place: Place,
) -> None:
    changed = event(20, 0, "UPDATE", {"id": 8}, last=True, old={"id": 7}, unchanged=["note"])
    await place.apply(inserts(10, 7, note="large"), of_events(changed))
    assert await place.rows() == {"8": {"id": "8", "note": "large"}}
    assert await place.keys() == ["headrace", "public.users", "public.users:8"]


async def test_the_old_key_is_deleted_if_its_update_is_parked(place: Place) -> None:
    changed = event(20, 0, "UPDATE", {"id": 8}, last=True, old={"id": 7})
    router = Router(parked={"14-0"})
    routed = router.route(Transaction((changed,), ends=True))
    assert routed is not None
    await place.apply(inserts(10, 7), routed)
    assert await place.rows() == {}


def schema(lsn: int, version: int, *changes: Mapping[str, Any], **more: Any) -> RoutedTransaction:
    found = event(lsn, 0, "SCHEMA", {}, last=True, version=version, changes=list(changes), **more)
    return of_events(found)


async def test_changes_of_columns_are_applied_to_all_rows_once(place: Place) -> None:
    renamed = schema(
        20,
        2,
        {"change": "column_renamed", "from": "mail", "column": "address"},
        {"change": "column_dropped", "column": "note"},
        {"change": "column_added", "column": "plan", "filled": "free", "filled_text": "free"},
    )
    await place.apply(inserts(10, 1, 2, mail="a@b", note="x"), renamed)
    row = {"address": "a@b", "plan": "free"}
    assert await place.rows() == {"1": {"id": "1", **row}, "2": {"id": "2", **row}}
    unset = transaction(30, ("UPDATE", {"id": 1, "address": "a@b", "plan": None}))
    # After a recovery, the event may come again.
    await place.apply(unset, renamed)
    assert (await place.rows())["1"] == {"id": "1", "address": "a@b"}
    await place.apply(schema(40, 3, {"change": "table_dropped"}))
    assert await place.rows() == {}


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (schema(20, 2, {"change": "table_rewritten"}, resync=True), "do not describe"),
        (schema(20, 2, {"change": "key_changed", "from": [], "to": []}), "can't apply key_changed"),
        (transaction(20, ("GAP", {})), "Changes were lost"),
    ],
)
async def test_what_rows_can_not_follow_is_refused_with_the_remedy(
    place: Place, refused: RoutedTransaction, says: str
) -> None:
    sink = place.sink()
    await sink.open()
    with pytest.raises(SinkError, match=f"{says}.*headrace sinks reset {place.name}"):
        await sink.write([refused])
    await sink.close()


async def test_a_table_without_a_key_has_no_hashes(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    keyless = of_events(event(10, 0, "INSERT", {"a": 1}, last=True, key=[]))
    with pytest.raises(RefusedError, match="has no key"):
        await sink.write([keyless])
    await sink.close()
    await place.apply(keyless, form="streams")
    assert len(await place.entries()) == 1


async def test_a_stream_has_every_change_with_its_key_and_position(place: Place) -> None:
    await place.apply(inserts(10, 1, 2), transaction(20, ("DELETE", {"id": 1})), form="streams")
    found = await place.entries()
    assert [entry[b"key"] for entry in found] == [b"[1]", b"[2]", b"[1]"]
    assert [entry[b"headrace-position"] for entry in found] == [b"10 0", b"10 1", b"20 0"]
    assert json.loads(found[2][b"value"])["operation"] == "DELETE"


async def test_a_stream_keeps_about_its_length(place: Place) -> None:
    many = [inserts(10 * number, *range(50)) for number in range(1, 41)]
    await place.apply(*many, form="streams", stream_length_max=300)
    assert 300 <= len(await place.entries()) < 600


@pytest.mark.parametrize("form", ["state", "streams"])
async def test_an_older_process_is_refused_at_its_commit(place: Place, form: str) -> None:
    older, newer = place.sink(form=form), place.sink(form=form)
    await older.open()
    await older.write([inserts(10, 1)])
    assert await newer.open() == {}
    with pytest.raises(SinkFencedError):
        await older.commit(marks(inserts(10, 1)))
    assert await place.keys() == ["headrace"]
    await older.close()
    await newer.close()


async def test_a_server_with_an_older_state_ends_the_session_and_the_next_one_continues_there(
    place: Place,
) -> None:
    sink = place.sink()
    await sink.open()
    await sink.write([inserts(10, 1)])
    await sink.commit(marks(inserts(10, 1)))
    own = f"{{{place.name}}}:headrace"
    older = await place.client.hget(own, "position")
    await sink.write([inserts(20, 2)])
    await sink.commit(marks(inserts(20, 2)))
    await place.client.hset(own, "position", older)
    await sink.write([inserts(30, 3)])
    with pytest.raises(SinkAwayError, match="has lost commits"):
        await sink.commit(marks(inserts(30, 3)))
    await sink.close()
    again = place.sink()
    assert await again.open() == marks(inserts(10, 1))
    await again.close()


async def test_a_foreign_key_is_not_overwritten_and_nothing_else_is_written(place: Place) -> None:
    await place.client.set(f"{{{place.name}}}:public.users:2", "foreign")
    sink = place.sink()
    await sink.open()
    await sink.write([inserts(10, 1, 2)])
    with pytest.raises(SinkError, match=r"public\.users:2 is not of the type"):
        await sink.commit(marks(inserts(10, 1, 2)))
    await sink.close()
    assert await place.keys() == ["headrace", "public.users:2"]


async def test_an_error_of_the_server_contains_no_row(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    await sink.write([inserts(10, 1, note="a secret")])
    await place.client.script_flush()
    with pytest.raises(SinkAwayError, match="No matching script") as error:
        await sink.commit(marks(inserts(10, 1)))
    assert "a secret" not in str(error.value)
    await sink.close()


async def test_a_server_that_evicts_any_key_is_refused(
    session_servers: SessionServers,
) -> None:
    options = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    server = session_servers.new("valkey", lambda folder: ValkeyServer(folder, options=options))
    await server.start()
    sink = ValkeySink(SinkOptions("shop", f"valkey://127.0.0.1:{server.port}"))
    with pytest.raises(SinkError, match="Set maxmemory-policy to noeviction"):
        await sink.open()
    await sink.close()
    session_servers.discard(server)


async def test_tls_and_a_password(session_servers: SessionServers, tmp_path: Path) -> None:
    server = session_servers.new("valkey", lambda folder: ValkeyServer(folder, password="right"))
    await server.start()
    authority = Authority(tmp_path)
    pair = authority.server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    async with tls_tunnel(server.port, context) as port:
        good = {"password": "right", "ca_file": str(authority.certificate)}

        def sink(**options: Any) -> ValkeySink:
            return ValkeySink(SinkOptions("shop", f"valkey://localhost:{port}", "", options))

        secure = sink(**good)
        await secure.open()
        await secure.write([inserts(10, 1)])
        await secure.commit(marks(inserts(10, 1)))
        await secure.close()
        wrong_password = sink(**{**good, "password": "wrong"})
        with pytest.raises(SinkError, match="Check username and password"):
            await wrong_password.open()
        await wrong_password.close()
        # The system's authorities have not signed the certificate.
        untrusted = sink(password="right", tls=True)
        with pytest.raises(SinkAwayError, match=r"(?i)certificate"):
            await untrusted.open()
        await untrusted.close()
    session_servers.discard(server)


@pytest.mark.parametrize(
    ("to", "options", "says"),
    [
        ("valkey://:secret@host", {}, "set the password as an option"),
        ("valkey://host/x", {}, "database's number"),
        ("valkey://host", {"form": "hashes"}, '"state" or "streams"'),
        ("valkey://host", {"prefx": "a"}, "Did you mean prefix"),
    ],
)
def test_a_wrong_option_is_named_before_a_connection_is_opened(
    to: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says) as refused:
        ValkeySink(SinkOptions("shop", to, "", options))
    assert "secret" not in str(refused.value)
