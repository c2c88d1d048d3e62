"""The effect of an event on a mirror's table, and the comparison of rows: the pure parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.consumer.event import Event, of_message
from headrace.contract.events import encode
from headrace.contract.values import Encoding
from headrace.errors import SettingError
from headrace.mirror.event_steps import Gone, Resync, coalesced, gone, reshaped, row_steps, shape
from headrace.mirror.table import BootstrapRun, Column, Phase, Table, TableState
from headrace.mirror.target import (
    AlterTable,
    DeleteRow,
    InsertRows,
    TruncateTable,
    UpdateRow,
    target_of,
)
from headrace.mirror.value_kinds import ValueKind, array_literal, kind_of
from headrace.verify.digest import Difference, Digests, differences, differing
from headrace.verify.digest import RowFault as Wrong


def row_step(event: Event, table: Table) -> Any:
    """The only step of a change."""
    steps = row_steps(event, table)
    if isinstance(steps, Resync):
        return steps
    (step,) = steps
    return step


USERS = Table(
    "public", "users", (Column("id", "integer"), Column("name", "text")), ("id",), ("id",)
)


def event(operation: str, data: Mapping[str, Any], **more: Any) -> Event:
    tx = {"xid": 7, "lsn": 100, "ts": None, "seq": 0, "last": True}
    payload = {
        "table": "users",
        "schema": "public",
        "source": "s",
        "operation": operation,
        "data": data,
        "tx": tx,
    }
    (made,) = of_message(encode({**payload, **more}, Encoding.MSGPACK), "cdc.users.x", 1)
    return made


def schema_event(
    columns: Mapping[str, str], *changes: Mapping[str, Any], resync: bool = False
) -> dict[str, Any]:
    return {
        "table": "users",
        "schema": "public",
        "columns": [{"name": name, "data_type": kind} for name, kind in columns.items()],
        "primary_key": ["id"] if "id" in columns else [],
        "replica_identity": "d",
        "identity": ["id"] if "id" in columns else [],
        "changes": list(changes),
        "resync": resync,
    }


def test_an_update_names_its_row_by_the_key_as_it_was() -> None:
    assert row_step(event("UPDATE", {"id": 3, "name": "x"}, old={"id": 2}), USERS) == UpdateRow(
        USERS, {"id": 2}, {"id": 3, "name": "x"}
    )
    # A column that was not sent is not touched.
    assert row_step(event("UPDATE", {"id": 3}, unchanged=["name"]), USERS) == UpdateRow(
        USERS, {"id": 3}, {"id": 3}
    )


def test_a_delete_without_a_key_names_its_row_by_all_of_it() -> None:
    keyless = Table("public", "users", USERS.columns, (), ("id", "name"))
    old = {"id": 1, "name": None}
    assert row_step(event("DELETE", old, old=old), keyless) == DeleteRow(keyless, old)
    assert row_step(event("TRUNCATE", {}), keyless) == TruncateTable(keyless)


def test_an_index_that_identifies_is_used_where_the_primary_key_was_not_sent() -> None:
    table = Table("public", "users", USERS.columns, ("id",), ("name",))
    assert row_step(
        event("DELETE", {"id": None, "name": "a"}, old={"name": "a"}), table
    ) == DeleteRow(table, {"name": "a"})


def test_a_row_of_a_shape_that_nobody_told_of_asks_for_a_copy() -> None:
    assert isinstance(row_step(event("INSERT", {"id": 1, "other": 2}), USERS), Resync)


def test_a_shape_is_reached_by_rename_drop_and_addition() -> None:
    told = schema_event(
        {"id": "integer", "label": "text", "n": "integer"},
        {"change": "column_renamed", "from": "name", "column": "label"},
        {"change": "column_added", "column": "n", "data_type": "integer"},
    )
    change = reshaped(USERS, told)
    assert isinstance(change, AlterTable)
    assert change.renamed == {"label": "name"}
    assert change.after == shape(told)
    # Reported again, or copied since: nothing is left to do.
    assert reshaped(change.after, told) is None


def test_columns_that_take_each_others_names_ask_for_a_copy() -> None:
    told = schema_event(
        {"id": "text", "name": "integer"},
        {"change": "column_renamed", "from": "id", "column": "name"},
        {"change": "column_renamed", "from": "name", "column": "id"},
    )
    assert isinstance(reshaped(USERS, told), Resync)
    assert isinstance(
        reshaped(USERS, schema_event({"id": "integer", "name": "text"}, resync=True)), Resync
    )


def test_a_domain_is_its_base_type_and_asks_for_a_copy_where_that_was_not_known() -> None:
    told = schema_event({"id": "integer", "name": "text", "at": "moment"})
    unknown = shape(told)
    told["columns"][2]["base_type"] = "timestamp with time zone"
    assert shape(told).type_of("at") == "timestamp with time zone"
    assert isinstance(reshaped(unknown, told), Resync)
    assert isinstance(
        reshaped(shape(told), schema_event({"id": "integer", "name": "text", "at": "moment"})),
        Resync,
    )
    assert reshaped(shape(told), told) is None


def test_a_table_that_went_says_under_which_name_it_goes_on() -> None:
    assert gone(schema_event({}, {"change": "table_dropped"})) == Gone(None)
    assert gone(schema_event({}, {"change": "table_renamed", "to": "app.people"})) == Gone(
        ("app", "people")
    )
    assert gone(schema_event({"id": "integer"})) is None


def test_inserts_are_joined_and_nothing_changes_its_order() -> None:
    first, second = InsertRows(USERS, ({"id": 1},)), InsertRows(USERS, ({"id": 2},))
    joined = coalesced([first, second, TruncateTable(USERS), first])
    assert joined == [
        InsertRows(USERS, [{"id": 1}, {"id": 2}]),
        TruncateTable(USERS),
        InsertRows(USERS, [{"id": 1}]),
    ]


def test_a_tables_state_survives_its_being_written() -> None:
    run = BootstrapRun("snap-1", 5, 2, 20, USERS, chunks=1, rows=10, version=3, source="s")
    state = TableState("public", "users", Phase.LOADING, USERS, 4, 3, run, "why", "s")
    assert TableState.decode(state.encode()) == state


@pytest.mark.parametrize("url", ["sqlite://local.db", "oracle://x/y", "local.db", "sqlite:///"])
def test_an_address_that_names_no_target_is_refused(url: str) -> None:
    with pytest.raises(SettingError):
        target_of(url)


def test_types_have_the_kind_of_value_that_they_hold() -> None:
    kinds = {
        "bigint": ValueKind.INTEGER,
        "numeric(10,2)": ValueKind.TEXT,
        "timestamp(3) with time zone": ValueKind.TEXT,
    }
    kinds |= {
        "mood": ValueKind.UNKNOWN,
        "jsonb": ValueKind.JSON,
        "double precision": ValueKind.FLOAT,
        "bytea": ValueKind.BYTES,
    }
    assert {name: kind_of(name) for name in kinds} == kinds
    assert array_literal([1, None, 'a"b', ["", "null"]], str) == '{1,NULL,"a\\"b",{"","null"}}'


def digests(rows: list[tuple[Any, ...]]) -> Digests:
    made = Digests([0])
    made.add(rows)
    return made


def test_equal_rows_in_any_order_have_equal_digests_and_a_doubled_row_has_not() -> None:
    rows = [(number, f"row {number}") for number in range(2000)]
    assert not differing(digests(rows), digests(rows[::-1]))
    assert len(differing(digests(rows), digests([*rows, rows[5]]))) == 1
    # Text and number of the same look are not the same.
    assert differing(digests([(1, "1")]), digests([(1, 1)]))


def test_rows_that_differ_are_told_by_what_is_wrong_with_them() -> None:
    source = [(1, "a"), (2, "b"), (3, "c"), (3, "c")]
    mirror = [(1, "a"), (2, "B"), (3, "c"), (4, "d")]
    found = differences(source, mirror, [0], ["id", "name"])
    assert sorted(found, key=str) == sorted(
        [
            Difference(Wrong.CHANGED, (2,), ("name",)),
            Difference(Wrong.MISSING, (3,)),
            Difference(Wrong.EXTRA, (4,)),
        ],
        key=str,
    )
    assert differences([(1,), (1,)], [(1,)], [], ["n"]) == [Difference(Wrong.MISSING, (1,))]
