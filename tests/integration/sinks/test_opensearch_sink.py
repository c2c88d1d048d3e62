"""A sink in OpenSearch, read by plain HTTP: each row as a document, with the right state even if
changes come again, in any order.
"""

from __future__ import annotations

import random
import ssl
from pathlib import Path
from typing import Any

import pytest

from headrace.consumer import Transaction, Watermark
from headrace.errors import SettingError
from headrace.lsn import Position
from headrace.sinks.opensearch import OpenSearchSink
from headrace.sinks.port import (
    RefusedError,
    SinkAwayError,
    SinkError,
    SinkFencedError,
    SinkOptions,
)
from headrace.sinks.routing import RoutedTransaction, Router
from headrace.testing.certificates import Authority
from headrace.testing.names import Names
from headrace.testing.opensearch import OpenSearchServer
from tests.support.guarded_server import guarded
from tests.support.opensearch_place import Place
from tests.support.sink_records import event, inserts, marks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def place(opensearch: OpenSearchServer, names: Names) -> Place:
    return Place(opensearch, names.other("sink").lower())


async def test_rows_are_documents_after_a_commit_and_the_marks_return(place: Place) -> None:
    sink = place.sink()
    assert await sink.open() == {}
    both = (place.inserts(16, 1, name="Ada"), place.inserts(24, 2, name=None))
    await sink.write(both)
    assert place.rows() == {}
    await sink.commit(marks(*both))
    await sink.close()
    assert place.rows() == {"1": {"id": 1, "name": "Ada"}, "2": {"id": 2, "name": None}}
    again = place.sink()
    assert await again.open() == marks(*both)
    await again.close()


def history(place: Place) -> list[RoutedTransaction]:
    """Inserts, updates, deletes, rows that return, changed keys, and a truncate in between."""
    moved = event(72, 0, "UPDATE", {"id": 9, "n": 9}, last=True, old={"id": 1})
    return [
        place.inserts(8, 1, 2, 3, n=0),
        place.transaction(16, ("TRUNCATE", {}), ("INSERT", {"id": 3, "n": 1})),
        place.inserts(24, 1, 2, 4, 5, n=2),
        place.transaction(32, ("UPDATE", {"id": 1, "n": 3}), ("DELETE", {"id": 2})),
        place.transaction(40, ("INSERT", {"id": 2, "n": 4}), ("UPDATE", {"id": 2, "n": 5})),
        place.transaction(48, ("DELETE", {"id": 4}), ("INSERT", {"id": 4, "n": 6})),
        place.transaction(56, ("UPDATE", {"id": 4, "n": 7}), ("DELETE", {"id": 5})),
        place.transaction(64, ("UPDATE", {"id": 3, "n": 8})),
        place.routed(moved),
    ]


# Written down from what PostgreSQL would have, not computed.
AFTER_HISTORY = {
    "2": {"id": 2, "n": 5},
    "3": {"id": 3, "n": 8},
    "4": {"id": 4, "n": 7},
    "9": {"id": 9, "n": 9},
}


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_a_replay_in_any_order_leaves_the_same_state(place: Place, seed: int | None) -> None:
    found = history(place)
    await place.apply(*found)
    assert place.rows() == AFTER_HISTORY
    versions = place.reader.versions(place.index)
    if seed is not None:
        random.Random(seed).shuffle(found)
    # Each in a separate session and request, so that nothing is collapsed before it is sent.
    for one in found:
        await place.apply(one)
    assert place.rows() == AFTER_HISTORY
    assert place.reader.versions(place.index) == versions, "nothing was written again"


async def test_one_commit_or_one_each_leave_the_same_versions(place: Place) -> None:
    await place.apply(*history(place))
    together = place.reader.versions(place.index)
    other = Place(place.server, f"{place.name}-each")
    for one in history(other):
        await other.apply(one)
    assert other.rows() == AFTER_HISTORY
    assert other.reader.versions(other.index) == together


async def test_a_large_value_that_did_not_change_is_kept(place: Place) -> None:
    changed = event(16, 0, "UPDATE", {"id": 7, "n": 2}, last=True, unchanged=["note"])
    await place.apply(place.inserts(8, 7, n=1, note="large"))
    await place.apply(place.routed(changed))
    assert place.rows() == {"7": {"id": 7, "n": 2, "note": "large"}}
    # Within one commit nothing is read: the value is in the change before.
    both = event(32, 0, "UPDATE", {"id": 8, "n": 2}, last=True, unchanged=["note"])
    await place.apply(place.inserts(24, 8, n=1, note="other"), place.routed(both))
    assert place.rows()["8"] == {"id": 8, "n": 2, "note": "other"}
    # A replay finds a later document, and leaves it alone.
    await place.apply(place.inserts(40, 7, n=3, note="newer"))
    await place.apply(place.routed(changed))
    assert place.rows()["7"] == {"id": 7, "n": 3, "note": "newer"}


async def test_a_changed_key_takes_large_values_with_it(place: Place) -> None:
    moved = event(16, 0, "UPDATE", {"id": 8}, last=True, old={"id": 7}, unchanged=["note"])
    again = event(24, 0, "UPDATE", {"id": 9}, last=True, old={"id": 8}, unchanged=["note"])
    await place.apply(place.inserts(8, 7, note="large"))
    await place.apply(place.routed(moved), place.routed(again))
    assert place.rows() == {"9": {"id": 9, "note": "large"}}
    for one in (moved, again):
        await place.apply(place.routed(one))
    assert place.rows() == {"9": {"id": 9, "note": "large"}}


async def test_the_old_key_is_deleted_if_its_update_is_parked(place: Place) -> None:
    changed = event(16, 0, "UPDATE", {"id": 8}, last=True, old={"id": 7})
    router = Router(destination=lambda _: place.index, parked={"10-0"})
    routed = router.route(Transaction((changed,), ends=True))
    assert routed is not None
    await place.apply(place.inserts(8, 7), routed)
    assert place.rows() == {}


async def test_a_value_that_nobody_has_is_named_as_unknown_and_not_null(place: Place) -> None:
    changed = event(16, 0, "UPDATE", {"id": 7, "n": 2}, last=True, unchanged=["note"])
    await place.apply(place.routed(changed))
    assert place.rows() == {"7": {"id": 7, "n": 2, "=unknown": ["note"]}}
    assert place.reader.found(place.index, {"term": {"=unknown": "note"}}) == ["7"]
    await place.apply(place.inserts(24, 7, n=3, note="known"))
    assert place.rows() == {"7": {"id": 7, "n": 3, "note": "known"}}


async def test_the_old_row_has_the_large_value_under_replica_identity_full(place: Place) -> None:
    old = {"id": 7, "n": 1, "note": "large", "doc": {"a": 1.5}}
    changed = event(
        16,
        0,
        "UPDATE",
        {"id": 7, "n": 2},
        last=True,
        old=old,
        unchanged=["note", "doc"],
        exact_old={"doc": '{"a": 1.50}'},
    )
    await place.apply(place.routed(changed))
    row = {"id": 7, "n": 2, "note": "large", "doc": {"a": 1.5}, "=text": {"doc": '{"a": 1.50}'}}
    assert place.rows() == {"7": row}


async def test_a_truncate_empties_the_index_at_once_and_nothing_older_returns(
    place: Place,
) -> None:
    before = place.inserts(8, 1, 2)
    emptied = place.transaction(16, ("INSERT", {"id": 3}), ("TRUNCATE", {}), ("INSERT", {"id": 4}))
    await place.apply(before, emptied)
    assert place.rows() == {"4": {"id": 4}}
    await place.apply(before)
    await place.apply(emptied)
    assert place.rows() == {"4": {"id": 4}}
    assert place.generations() == ["000002"]


COLUMNS = {"id": "bigint", "mail": "text", "note": "text"}


async def test_changes_of_columns_reach_every_document_once(place: Place) -> None:
    changed = place.schema(
        24,
        2,
        {"id": "bigint", "address": "text", "plan": "character varying(9)"},
        {"change": "column_renamed", "from": "mail", "column": "address"},
        {"change": "column_dropped", "column": "note"},
        {"change": "column_added", "column": "plan", "filled": "free", "filled_text": "free"},
    )
    first = place.schema(8, 1, COLUMNS, {"change": "table_first_seen"})
    rows = place.inserts(16, 1, 2, mail="a@b", note="x")
    await place.apply(first, rows, changed)
    row = {"address": "a@b", "plan": "free"}
    assert place.rows() == {"1": {"id": 1, **row}, "2": {"id": 2, **row}}
    assert sorted(place.reader.fields(place.index)) == [
        "=text",
        "=unknown",
        "address",
        "id",
        "plan",
    ]
    unset = place.transaction(32, ("UPDATE", {"id": 1, "address": "c", "plan": None}))
    await place.apply(unset)
    for one in (changed, rows, first):
        await place.apply(one)
    assert place.rows() == {"1": {"id": 1, "address": "c", "plan": None}, "2": {"id": 2, **row}}
    await place.apply(place.schema(40, 3, {}, {"change": "table_dropped"}))
    assert place.rows() == {}


async def test_a_row_that_changes_before_and_after_a_column_does_has_its_last_state(
    place: Place,
) -> None:
    await place.apply(place.schema(8, 1, COLUMNS), place.inserts(16, 1, 2, mail="a", note="n"))
    renamed = place.schema(
        24,
        2,
        {"id": "bigint", "address": "text", "note": "text"},
        {"change": "column_renamed", "from": "mail", "column": "address"},
    )
    (schema,) = (one.event for one in renamed.records)
    payload = {**schema.payload, "tx": {**schema.payload["tx"], "seq": 1}}
    found = (
        event(24, 0, "UPDATE", {"id": 1, "mail": "b", "note": "n"}, last=False),
        schema._replace(payload=payload, position=Position(24, 1)),
        event(24, 1, "UPDATE", {"id": 1, "address": "c", "note": "n"}, last=True),
    )
    wanted = {
        "1": {"id": 1, "address": "c", "note": "n"},
        "2": {"id": 2, "address": "a", "note": "n"},
    }
    for _ in range(2):
        await place.apply(place.routed(*found))
        assert place.rows() == wanted


async def test_a_new_column_needs_no_other_index(place: Place) -> None:
    wider = place.schema(
        24,
        2,
        {**COLUMNS, "age": "integer"},
        {"change": "column_added", "column": "age", "data_type": "integer"},
    )
    await place.apply(place.schema(8, 1, COLUMNS), place.inserts(16, 1, mail="a"), wider)
    await place.apply(place.inserts(32, 2, age=7))
    assert place.reader.found(place.index, {"range": {"age": {"gte": 7}}}) == ["2"]
    assert place.generations() == ["000001"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"resync": True}, "do not describe"),
        ({"change": "key_changed", "from": ["id"], "to": ["a"]}, "can't apply key_changed"),
        ({"change": "table_renamed", "from": "public.people"}, "can't apply table_renamed"),
    ],
)
async def test_what_documents_can_not_follow_is_refused_with_the_remedy(
    place: Place, change: dict[str, Any], says: str
) -> None:
    resync = bool(change.pop("resync", False))
    changed = place.schema(16, 2, COLUMNS, *([change] if change else []), resync=resync)
    for before in ((), (place.inserts(8, 1),)):
        with pytest.raises(SinkError, match=f"{says}.*headrace sinks reset {place.name}"):
            await place.apply(*before, changed)
    with pytest.raises(SinkError, match="Changes were lost"):
        await place.apply(place.transaction(16, ("GAP", {})))


async def test_two_tables_in_one_index_and_one_table_in_two_are_refused(place: Place) -> None:
    other = event(16, 0, "INSERT", {"id": 1}, last=True, table="orders")
    with pytest.raises(SinkError, match=r"rows of public\.users and public\.orders"):
        await place.apply(place.inserts(8, 1), place.routed(other))
    routed = inserts(24, 1, router=Router(destination=lambda _: f"{place.index}-eu"))
    with pytest.raises(SinkError, match=r"public\.users would be in"):
        await place.apply(routed)


async def test_an_index_of_others_is_left_alone(place: Place) -> None:
    place.reader.ask("PUT", f"/{place.index}/_doc/1", {"id": "foreign"})
    with pytest.raises(SinkError, match="exists, and is not of the sink"):
        await place.apply(place.inserts(8, 1))
    assert place.rows() == {"1": {"id": "foreign"}}
    place.index = f"{place.index}-2"
    await place.apply(place.inserts(8, 1))
    other = place.sink(f"{place.name}-other")
    await other.open()
    with pytest.raises(SinkError, match="exists, and is not of the sink"):
        await other.write([place.inserts(8, 2)])
    await other.close()
    assert place.rows() == {"1": {"id": 1}}


async def test_an_older_process_writes_nothing_and_is_refused(place: Place) -> None:
    older, newer = place.sink(), place.sink()
    await older.open()
    await older.write([place.inserts(8, 1)])
    await newer.open()
    with pytest.raises(SinkFencedError):
        await older.commit(marks(place.inserts(8, 1)))
    assert place.rows() == {}
    # One without rows is refused by the marks themselves.
    await older.close()
    idle = place.sink()
    await idle.open()
    await newer.close()
    newest = place.sink()
    await newest.open()
    with pytest.raises(SinkFencedError):
        await idle.commit(marks(place.inserts(8, 1)))
    await idle.close()
    await newest.close()


async def test_a_replaced_process_can_not_write_into_a_later_index(place: Place) -> None:
    before = place.inserts(8, 1)
    await place.apply(before)
    older = place.sink()
    await older.open()
    await place.apply(place.transaction(16, ("TRUNCATE", {})))
    # Its check of the marks was before the other process began.
    older._confirm = _nothing  # type: ignore[method-assign]
    await older.write([place.inserts(12, 5)])
    with pytest.raises(SinkAwayError, match="was removed"):
        await older.commit(marks(before))
    await older.close()
    assert place.rows() == {}
    assert place.generations() == ["000002"]


async def _nothing() -> None:
    """In place of a check that has passed already."""


async def test_a_server_that_lost_commits_ends_the_session(place: Place) -> None:
    path = f"/headrace~marks/_doc/{place.name}"
    await place.apply(place.inserts(8, 1))
    kept = place.reader.ask("GET", path)["_source"]
    sink = place.sink()
    await sink.open()
    await sink.write([place.inserts(16, 2)])
    await sink.commit(marks(place.inserts(16, 2)))
    place.reader.ask("PUT", path, kept)
    await sink.write([place.inserts(24, 3)])
    with pytest.raises(SinkAwayError, match="has lost commits"):
        await sink.commit(marks(place.inserts(24, 3)))
    await sink.close()
    again = place.sink()
    assert await again.open() == marks(place.inserts(8, 1))
    await again.close()


async def test_a_document_that_is_refused_is_named_without_its_values(place: Place) -> None:
    place.columns = [{"name": "id", "data_type": "bigint"}, {"name": "ok", "data_type": "boolean"}]
    bad = place.inserts(16, 2, ok="a secret")
    with pytest.raises(RefusedError) as refused:
        await place.apply(place.inserts(8, 1, ok=True), bad)
    assert refused.value.record.id == bad.records[0].id
    assert "a secret" not in str(refused.value)
    assert "field ok" in refused.value.reason
    with pytest.raises(RefusedError, match="document_bytes_max"):
        await place.apply(place.inserts(24, 3, note="x" * 5000), document_bytes_max=4000)


async def test_a_dead_letter_that_is_older_than_its_index_is_not_taken_for_delivered(
    place: Place,
) -> None:
    await place.apply(place.inserts(8, 1), place.transaction(16, ("TRUNCATE", {})))
    sink = place.sink()
    found = dict(await sink.open())
    late = place.inserts(8, 2)
    await sink.write([late])
    with pytest.raises(RefusedError, match="truncated, copied or changed"):
        await sink.commit(found | {"replayed/8-0": Watermark(late.position)})
    await sink.close()
    assert place.rows() == {}


def copied(place: Place, lsn: int, *ids: int, **more: Any) -> RoutedTransaction:
    """A chunk of a table's copy."""
    found = [event(lsn, 0, "INSERT", {"id": one, **more}, last=False, snapshot=True) for one in ids]
    return place.routed(*found)


async def test_a_new_copy_replaces_the_index_at_once_when_it_is_complete(place: Place) -> None:
    await place.apply(place.inserts(8, 1, 2, n="old"))
    lane = "copy/users/0000"
    sink = place.sink()
    await sink.open()
    await sink.commit({lane: Watermark(Position(80, 0), 2)})
    for number, one in enumerate((copied(place, 80, 1, n="new"), copied(place, 80, 3, n="new"))):
        assert place.rows() == {"1": {"id": 1, "n": "old"}, "2": {"id": 2, "n": "old"}}
        await sink.write([one])
        await sink.commit({lane: Watermark(Position(80, number + 1), 2)})
        # A process that ends in the middle of a copy continues it.
        await sink.close()
        sink = place.sink()
        await sink.open()
    await sink.close()
    wanted = {"1": {"id": 1, "n": "new"}, "3": {"id": 3, "n": "new"}}
    assert place.rows() == wanted
    await place.apply(place.inserts(8, 1, 2, n="old"), copied(place, 80, 1, n="new"))
    assert place.rows() == wanted
    # A change that committed at the copy's position is later than the copy.
    await place.apply(place.transaction(80, ("UPDATE", {"id": 3, "n": "newest"})))
    assert place.rows()["3"] == {"id": 3, "n": "newest"}
    assert place.generations() == ["000002"]


async def test_a_new_copy_of_a_table_that_is_empty_now_empties_the_index(place: Place) -> None:
    await place.apply(place.inserts(8, 1, 2))
    sink = place.sink()
    await sink.open()
    await sink.commit({"copy/users/0001": Watermark(Position(80, 0), 0)})
    await sink.close()
    assert place.rows() == {}


async def test_the_memory_of_deletes_is_set_and_kept(place: Place) -> None:
    await place.apply(place.inserts(8, 1))
    path = f"/{place.index}/_settings"

    def kept() -> str:
        (found,) = place.reader.ask("GET", path).values()
        return str(found["settings"]["index"]["gc_deletes"])

    assert kept() == "1h"
    place.reader.ask("PUT", path, {"index.gc_deletes": "1s"})
    await place.apply(place.inserts(16, 2))
    assert kept() == "1h"
    await place.apply(place.inserts(24, 3), gc_deletes="2h")
    assert kept() == "2h"


async def test_tls_a_password_and_a_server_that_is_too_busy(place: Place, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    async with guarded(place.server.port, context) as (port, refused):

        def sink(to: str = "opensearch://ada@localhost", **options: Any) -> OpenSearchSink:
            given = {"replicas": 0, "ca_file": str(authority.certificate), **options}
            return OpenSearchSink(SinkOptions(place.name, f"{to}:{port}", "", given))

        secure = sink(password="right")
        await secure.open()
        await secure.write([place.inserts(8, 1)])
        await secure.commit(marks(place.inserts(8, 1)))
        await secure.close()
        assert refused, "the server was too busy at first"
        wrong = sink(password="wrong")
        with pytest.raises(SinkError, match="Check username and password"):
            await wrong.open()
        await wrong.close()
        # The system's authorities have not signed the certificate.
        untrusted = sink(password="right", ca_file="", tls=True)
        with pytest.raises(SinkAwayError, match=r"(?i)certificate"):
            await untrusted.open()
        await untrusted.close()
    assert place.rows() == {"1": {"id": 1}}


@pytest.mark.parametrize(
    ("to", "options", "says"),
    [
        ("opensearch://ada:secret@host", {}, "set the password as an option"),
        ("opensearch://host/index", {}, "opensearch://user@host:9200"),
        ("opensearch://host", {"shards": 0}, "Use 1 or more"),
        ("opensearch://host", {"gc_deletes": "an hour"}, "such as 1h"),
        ("opensearch://host", {"gc_delete": "1h"}, "Did you mean gc_deletes"),
    ],
)
def test_a_wrong_option_is_named_before_a_connection_is_opened(
    to: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says) as refused:
        OpenSearchSink(SinkOptions("shop", to, "", options))
    assert "secret" not in str(refused.value)
