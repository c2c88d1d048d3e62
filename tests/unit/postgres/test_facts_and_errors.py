"""Facts from the catalog's rows, the meaning of refusals, and the readers of slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from headrace.contract.selection import Selection
from headrace.contract.values import TypeInfo, TypeKind
from headrace.pgoutput.messages import Relation, RelationColumn
from headrace.postgres import catalog, connection, relation_facts
from headrace.postgres.catalog import Keys, delivered
from headrace.postgres.connection import (
    PostgresRefusedError,
    PostgresUnreachableError,
    explained,
    has_transaction_timeout,
    where,
)
from headrace.postgres.facts import (
    CatalogSnapshot,
    ColumnFacts,
    PublishedTable,
    RelationFiles,
    RelationNow,
    TableFacts,
    follows,
    precedes,
)
from headrace.postgres.quoting import escape_literal, quote_literal, quote_name, quote_table
from headrace.postgres.relation_facts import ReadingAbandonedError, RelationFacts
from headrace.postgres.replication_errors import (
    ReplicationRefusedError,
    SlotBusyError,
    SlotLostError,
    SlotMissingError,
    SnapshotTooLargeError,
    refusal,
    state_of_refusal,
)
from headrace.postgres.slot_reader import WAL_READER, SlotReader, application_name
from headrace.settings import PostgresSettings, Settings

SETTINGS = PostgresSettings(host="db", port=5433)
BILLION = 1_000_000_000


# Transaction ids, of which the stream has 32 bits.


def test_transaction_ids_are_compared_around_their_wrap() -> None:
    assert precedes(5, 6)
    assert not precedes(6, 5)
    assert not precedes(5, 5)
    assert precedes(2**32 - 1, 3)
    assert not precedes(3, 2**32 - 1)
    assert precedes(0, 2**31)
    assert not precedes(0, 2**31 + 1)


def test_only_ids_between_a_transaction_and_the_next_one_are_later() -> None:
    assert follows(11, 10, 20)
    assert follows(19, 10, 20)
    assert not follows(10, 10, 20)
    assert not follows(20, 10, 20)
    assert not follows(9, 10, 20)
    # An id of long ago looks later than any.
    assert not follows(10 + BILLION, 10, 20)
    assert follows(2, 2**32 - 5, 4)
    # A reading from before the transaction knows of nothing later.
    assert not follows(12, 20, 10)
    assert not follows(25, 20, 10)
    assert not follows(11, 10, 10 + 2**31)
    assert follows(11, 10, 9 + 2**31)


def test_a_snapshot_sees_what_had_committed() -> None:
    snapshot = CatalogSnapshot.parse(f"{2**32 + 100}:{2**32 + 110}:{2**32 + 103},{2**32 + 107}")
    assert snapshot.running == {103, 107}
    snapshot = CatalogSnapshot.parse("100:110:103,107")
    assert snapshot.sees(0)
    assert snapshot.sees(1)
    assert snapshot.sees(99)
    assert snapshot.sees(100)
    assert not snapshot.sees(103)
    assert snapshot.sees(109)
    assert not snapshot.sees(110)
    assert not snapshot.sees(111)
    assert CatalogSnapshot.parse("5:5:").running == frozenset()


# Rows of the catalog.


def row(**more: Any) -> dict[str, Any]:
    """A row of the facts of a table: one of its columns."""
    column = {"name": "id", "number": 1, "is_nullable": False, "defined_by": 50}
    column |= {"column_default": None, "filled": False, "missing": None}
    table = {"primary_key": ["id"], "key_defined_by": 50, "next_xid": 120, "lsn": 9, "seen": True}
    table |= {"type_names": ["integer", "mood"], "base_types": [None, "text"], "membership": 77}
    table |= {"last_number": 4, "storage": "1:2", "publication": "insert/5"}
    return {**table, **column, **more}


COLUMN_TYPES = [(23, -1), (20_000, 7)]


def facts(*rows: dict[str, Any], xid: int = 100) -> tuple[TableFacts, bool]:
    known = {20_000: TypeInfo(TypeKind.ENUM)}
    return catalog._table_facts(rows, COLUMN_TYPES, known, xid)


def test_a_tables_facts_are_those_of_its_rows() -> None:
    second = {"name": "note", "number": 3, "is_nullable": True, "column_default": "'x'"}
    found, seen = facts(row(), row(**second, filled=True, missing=b"x"))
    assert seen
    assert found == TableFacts(
        primary_key=("id",),
        key_is_later=False,
        types={20_000: TypeInfo(TypeKind.ENUM)},
        columns={
            "id": ColumnFacts(1, False, None, False, None),
            "note": ColumnFacts(3, True, "'x'", True, b"x"),
        },
        type_names={(23, -1): "integer", (20_000, 7): "mood"},
        base_types={20_000: "text"},
        membership=77,
        last_number=4,
        storage="1:2",
        publication="insert/5",
        lsn=9,
        next_xid=120,
    )


def test_later_definitions_are_recognized() -> None:
    found, _ = facts(row(key_defined_by=101, defined_by=101))
    assert found.key_is_later
    assert found.columns["id"].number == 0, "another column of the same name, perhaps"
    assert not facts(row(key_defined_by=None))[0].key_is_later
    assert not facts(row(key_defined_by=100))[0].key_is_later


def test_a_dropped_table_has_no_facts() -> None:
    empty = dict.fromkeys(row())
    found, seen = facts({**empty, "type_names": [None, None], "base_types": [None, None],
                         "lsn": 9, "next_xid": 120, "seen": False})  # fmt: skip
    assert found == TableFacts(types={20_000: TypeInfo(TypeKind.ENUM)}, lsn=9, next_xid=120)
    assert not seen


class Session:
    """A connection to the catalog, with an answer for each query."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        self.transactions: list[dict[str, Any]] = []
        self.terminated = False

    async def fetch(self, _query: str, *arguments: Any) -> Any:
        self.asked.append(arguments)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def transaction(self, **options: Any) -> Any:
        self.transactions.append(options)
        return Block()

    def is_closed(self) -> bool:
        return self.terminated

    def terminate(self) -> None:
        self.terminated = True


class Block:
    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


def test_built_in_types_cost_one_query_and_others_are_read_in_the_same_snapshot() -> None:
    plain = Session([row(type_names=["integer"], base_types=[None])])
    asyncio.run(catalog.table_facts(plain, 5, [(23, -1)], "pub", 100))
    assert plain.asked == [("pub", 5, 100, [23], [-1])]
    assert plain.transactions == []
    types = [
        {"oid": 20_000, "is_array": False, "typtype": "e", "typbasetype": 0, "typelem": 0},
        {"oid": 20_001, "is_array": True, "typtype": "b", "typelem": 20_000, "delimiter": ";"},
        {"oid": 20_002, "is_array": False, "typtype": "d", "typbasetype": 23, "typelem": 0},
        {"oid": 20_003, "is_array": False, "typtype": "?", "typbasetype": 0, "typelem": 0},
    ]
    session = Session([row()], types)
    found, _ = asyncio.run(catalog.table_facts(session, 5, COLUMN_TYPES, "pub", 100))
    assert session.transactions == [{"isolation": "repeatable_read", "readonly": True}]
    assert session.asked[1] == ([20_000],)
    assert found.types == {
        20_000: TypeInfo(TypeKind.ENUM, base_oid=0),
        20_001: TypeInfo(TypeKind.ARRAY, element_oid=20_000, delimiter=";"),
        20_002: TypeInfo(TypeKind.DOMAIN, base_oid=23),
        20_003: TypeInfo(TypeKind.BASE, base_oid=0),
    }


def test_relations_that_are_gone_are_left_out_of_a_reading() -> None:
    there = {"relation_id": 5, "schema": "app", "name": "t", "storage": "1", "lsn": 9}
    gone = {"relation_id": 6, "schema": None, "name": None, "storage": None, "lsn": 9}
    session = Session([{**there, "seen": True}, {**gone, "seen": True}])
    found = asyncio.run(catalog.relations_now(session, {5: None, 6: None}, 100))
    assert found == ({5: RelationNow("app", "t", "1", 9)}, True)
    session = Session([{**there, "seen": True}, {**gone, "seen": False}])
    assert not asyncio.run(catalog.relations_now(session, [5, 6], 100))[1]


def test_keys_and_files_are_those_of_existing_relations() -> None:
    rows = [
        {"relation_id": 5, "primary_key": ["b", "a"], "identity_index": None},
        {"relation_id": 6, "primary_key": None, "identity_index": ["c"]},
        {"relation_id": 7, "primary_key": None, "identity_index": None},
    ]
    found = asyncio.run(catalog.keys(Session(rows), [5, 6, 7]))
    assert {oid: key.row for oid, key in found.items()} == {5: ("b", "a"), 6: ("c",), 7: ()}
    assert found[5] == Keys(("b", "a"))
    files = [
        {"relation_id": 5, "text": "5:6", "lsn": 9, "first": True, "joined": [7], "next_xid": 8}
    ]
    (one,) = asyncio.run(catalog.files(Session(files), [5])).values()
    assert one == RelationFiles("5:6", 9, True, (7,), 8)


def published(name: str, *columns: str) -> PublishedTable:
    return PublishedTable(5, "public", name, "d", columns, None, "r")


def test_excluded_tables_and_columns_are_not_delivered() -> None:
    tables = [published("a", "id", "secret"), published("b", "id")]
    selection = Selection(exclude=("b",), exclude_columns=("a.secret",))
    assert delivered(tables, selection) == [published("a", "id")]


def test_a_reading_has_the_published_columns_of_a_table() -> None:
    table = published("a", "id", "note")
    keys = {"primary_key": ["id"], "membership": None}
    rows = [{"name": "id", "last_number": 4}, {"name": "note", "last_number": 4}]
    found = catalog._table_reading(table, rows, keys, {"storage": "1", "definitions": "d"})
    assert (found.primary_key, found.membership, found.storage) == (("id",), 0, "1")
    assert (found.last_number, found.definitions) == (4, "d")
    assert list(found.columns) == rows
    # The highest number counts columns that are not published.
    hidden = [*rows, {"name": "hidden", "last_number": 4}]
    found = catalog._table_reading(table, hidden, keys, {})
    assert (found.last_number, found.storage, found.definitions) == (4, "", "")
    assert list(found.columns) == rows
    bare = {"primary_key": None, "membership": 7}
    found = catalog._table_reading(table, [], bare, {})
    assert (found.primary_key, found.membership, found.last_number) == ((), 7, 0)


# Refusals.


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('FATAL: password authentication failed for user "u"', "28P01"),
        ("no password supplied", "28P01"),
        ("no pg_hba.conf entry for host", "28000"),
        ("permission denied to start WAL sender", "42501"),
        ("must be superuser or replication role to start walsender", "42501"),
        ('role "u" is not permitted to log in', "28000"),
        ("sorry, too many clients already", "53300"),
        ('database "x" does not exist', "3D000"),
        ('role "x" does not exist', "28000"),
        ("connection refused", None),
    ],
)
def test_a_refused_connections_state_is_found_in_its_text(text: str, state: str | None) -> None:
    assert state_of_refusal(text) == state


@pytest.mark.parametrize(
    ("state", "text", "kind"),
    [
        ("55006", "replication slot is active", SlotBusyError),
        ("42704", 'publication "p" does not exist', ReplicationRefusedError),
        ("42704", 'replication slot "s" does not exist', SlotMissingError),
        ("55000", "logical decoding requires wal_level >= logical", ReplicationRefusedError),
        ("55000", "can no longer get changes from replication slot", SlotLostError),
        ("55000", "something else", PostgresRefusedError),
        ("58P01", "requested WAL segment has already been removed", SlotLostError),
        ("53400", "all replication slots are in use", ReplicationRefusedError),
        ("XX000", "initial slot snapshot too large", SnapshotTooLargeError),
        ("42501", "permission denied", ReplicationRefusedError),
        ("57P03", "the database system is starting up", PostgresUnreachableError),
        (None, "no answer", PostgresUnreachableError),
    ],
)
def test_a_refusal_has_its_meaning(state: str | None, text: str, kind: type[Exception]) -> None:
    assert type(refusal(state, text, SETTINGS)) is kind


def test_an_unavailable_server_is_retried_and_a_refusal_is_not() -> None:
    away = explained("57P03", "FATAL:  the database\n is starting up.", SETTINGS)
    assert away.retry
    assert "db:5433 is not available now: the database is starting up." in str(away)
    assert away.remedy is not None
    assert "PG_HOST" in away.remedy
    refused = explained("28P01", "FATAL: password authentication failed", SETTINGS)
    assert not refused.retry
    assert refused.remedy is not None
    assert "POSTGRES_BRIDGE_PASSWORD" in refused.remedy
    assert explained("99999", "x", SETTINGS).remedy != refused.remedy
    full = explained("53300", "FATAL: sorry, too many clients already", SETTINGS)
    assert full.retry
    assert "max_connections" in str(full.remedy)


def test_only_a_failed_handshake_about_a_certificate_has_its_remedy() -> None:
    def remedy(state: str | None, text: str) -> str:
        return str(explained(state, text, SETTINGS).remedy)

    assert "PGSSLROOTCERT" in remedy(None, "Certificate verify failed")
    assert "PGSSLROOTCERT" not in remedy("57P03", "certificate")
    assert "PGSSLROOTCERT" not in remedy(None, "connection refused")


def test_a_server_is_named_by_its_settings_or_libpqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGPORT", raising=False)
    assert where(SETTINGS) == "db:5433"
    assert where(PostgresSettings()) == "localhost:5432"
    monkeypatch.setenv("PGHOST", "other")
    monkeypatch.setenv("PGPORT", "77")
    assert where(PostgresSettings()) == "other:77"


def test_transactions_end_for_their_age_since_postgresql_17() -> None:
    assert not has_transaction_timeout(16)
    assert has_transaction_timeout(17)
    assert has_transaction_timeout(18)


def connecting(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[..., Any], settings: PostgresSettings
) -> Any:
    monkeypatch.setattr(asyncpg, "connect", connect)
    return asyncio.run(connection.connect(settings, "test", search_path="x"))


@pytest.mark.parametrize(
    ("environment", "host"),
    [({}, "localhost"), ({"PGHOST": "h"}, None), ({"PGSERVICE": "s"}, None)],
)
def test_a_host_is_given_unless_libpq_knows_one(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], host: str | None
) -> None:
    for name in ("PGHOST", "PGSERVICE", "PGCHANNELBINDING"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given: dict[str, Any] = {}

    async def connect(**options: Any) -> None:
        given.update(options)

    connecting(monkeypatch, connect, PostgresSettings(host=None, port=7))
    assert given.get("host") == host
    assert given["port"] == 7
    assert "password" not in given
    assert given["server_settings"]["application_name"] == "test"
    assert given["server_settings"]["search_path"] == "x"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (asyncpg.InvalidPasswordError("no"), PostgresRefusedError, "no"),
        (OSError("refused"), PostgresUnreachableError, "refused"),
        (TimeoutError(), PostgresUnreachableError, "did not answer in time"),
        (asyncio.IncompleteReadError(b"", 5), PostgresUnreachableError, "0 bytes read"),
    ],
)
def test_a_connection_that_fails_is_explained(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], words: str
) -> None:
    async def connect(**_: Any) -> None:
        raise error

    with pytest.raises(kind, match=words):
        connecting(monkeypatch, connect, SETTINGS)


def test_channel_binding_that_is_required_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(**_: Any) -> str:
        return "connected"

    monkeypatch.setenv("PGCHANNELBINDING", "require")
    with pytest.raises(PostgresRefusedError, match="PGCHANNELBINDING"):
        connecting(monkeypatch, connect, SETTINGS)
    monkeypatch.setenv("PGCHANNELBINDING", "prefer")
    assert connecting(monkeypatch, connect, SETTINGS) == "connected"


# Facts of a relation of the stream.

RELATION = Relation(5, "public", "t", "d", (RelationColumn(False, "id", 23, -1),))


class Stops:
    """A service's scope, which stops after so many pauses."""

    def __init__(self, pauses: int = 100) -> None:
        self.stopping = asyncio.Event()
        self.pauses = pauses
        self.blocked: list[str] = []
        self.health = SimpleNamespace(
            block=lambda _, why: self.blocked.append(why),
            unblock=lambda _: self.blocked.append(""),
        )

    async def pause(self, _: float) -> None:
        self.pauses -= 1
        if not self.pauses:
            self.stopping.set()


def fact_row(*, seen: bool) -> dict[str, Any]:
    return row(type_names=["integer"], base_types=[None], seen=seen)


def reading(
    monkeypatch: pytest.MonkeyPatch, sessions: list[Any], work: Callable[[Any, Any], Any]
) -> tuple[Any, Stops, list[Any]]:
    scope = Stops(3)
    opened: list[Any] = []

    async def connect(*_: Any) -> Any:
        session = sessions[len(opened)]
        opened.append(session)
        if isinstance(session, BaseException):
            raise session
        return session

    monkeypatch.setattr(connection, "connect", connect)

    async def run() -> Any:
        return await work(RelationFacts(Settings(), "test"), scope)

    return asyncio.run(run()), scope, opened


def test_a_reading_waits_until_its_transaction_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session([fact_row(seen=False)], [fact_row(seen=False)], [fact_row(seen=True)])
    found, scope, _ = reading(
        monkeypatch, [session], lambda facts, scope: facts.of(scope, RELATION, 100)
    )
    assert found.primary_key == ("id",)
    assert session.answers == []
    assert scope.blocked == [""]


def test_a_transaction_that_stays_invisible_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relation_facts, "VISIBLE_TIMEOUT_S", 0.02)
    session = Session(*[[fact_row(seen=False)] for _ in range(10_000)])

    async def work(facts: RelationFacts, scope: Any) -> int:
        await facts.of(scope, RELATION, 100)
        before = len(session.asked)
        await facts.of(scope, RELATION, 100)
        return len(session.asked) - before

    again, _, _ = reading(monkeypatch, [session], work)
    assert again == 1


@pytest.mark.parametrize(
    "error",
    [OSError("cut"), asyncpg.InterfaceError("cut"), asyncpg.ConnectionDoesNotExistError("cut")],
)
def test_a_broken_connection_is_replaced(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    broken = Session(error)
    found, scope, opened = reading(
        monkeypatch,
        [broken, Session([fact_row(seen=True)])],
        lambda facts, scope: facts.of(scope, RELATION, 100),
    )
    assert found.primary_key == ("id",)
    assert broken.terminated
    assert len(opened) == 2
    assert len(scope.blocked) == 2
    assert scope.blocked[-1] == ""


def test_a_refused_query_is_an_error_and_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Session(asyncpg.InsufficientPrivilegeError("no"))
    with pytest.raises(PostgresRefusedError):
        reading(monkeypatch, [refused], lambda facts, scope: facts.of(scope, RELATION, 100))
    assert refused.terminated


def test_a_stop_ends_the_wait_for_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    away = [PostgresUnreachableError("away")] * 5
    with pytest.raises(ReadingAbandonedError):
        reading(monkeypatch, away, lambda facts, scope: facts.of(scope, RELATION, 100))


def test_one_connection_serves_all_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"relation_id": 5, "schema": "app", "name": "t", "storage": "1", "lsn": 9, "seen": True}
    session = Session([fact_row(seen=True)], [now])

    async def work(facts: RelationFacts, scope: Any) -> Any:
        await facts.of(scope, RELATION, 100)
        found = await facts.now(scope, [5], 100)
        await facts.close()
        await facts.close()
        return found

    found, _, opened = reading(monkeypatch, [session], work)
    assert found == {5: RelationNow("app", "t", "1", 9)}
    assert opened == [session]
    assert session.terminated


# Readers of slots.


def reader(application: str, wait: str | None = None) -> SlotReader:
    return SlotReader.of((12, application, None, None, wait))


def test_a_reader_is_this_suites_another_ones_or_another_program() -> None:
    ours = reader("headrace wal-reader abc123")
    assert ours.belongs_to("abc123")
    assert not ours.belongs_to("")
    assert not ours.is_foreign("abc123")
    assert ours.is_foreign("def456")
    assert ours.is_suite
    older = reader(WAL_READER)
    assert not older.is_foreign("abc123")
    assert not older.belongs_to("abc123")
    assert not reader("headrace init").is_foreign("abc123")
    assert not reader("headrace init").is_suite
    assert reader("psql").is_foreign("abc123")
    assert not reader("psql").is_suite
    assert application_name("") == WAL_READER


def test_an_idle_reader_has_read_everything() -> None:
    assert reader("x", "WalSenderMain").idle
    assert reader("x", "WalSenderWaitForWAL").idle
    assert not reader("x", "ClientRead").idle
    assert not reader("x").idle


def test_a_reader_is_described_by_what_is_known_of_it() -> None:
    full = SlotReader.of((12, "psql", "10.0.0.1", "today", None))
    assert str(full) == (
        'another program (application "psql", client 10.0.0.1, process 12, since today)'
    )
    assert str(reader("headrace wal-reader x")) == (
        'another suite (application "headrace wal-reader x", process 12)'
    )
    assert SlotReader.of((12, None, None, None, None)).application == ""


# Names and texts.


def test_names_and_texts_are_quoted() -> None:
    assert quote_name('a"b') == '"a""b"'
    assert quote_table("s", 't"') == '"s"."t"""'
    assert quote_literal("it's \\") == "'it''s \\'"
    assert escape_literal("it's \\") == "E'it''s \\\\'"
