"""Which events a sink receives: `where` over inserts, updates and deletes; columns; templates."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.consumer import Event, Position, Transaction
from headrace.sinks.building import check_columns, router_of
from headrace.sinks.conditions import ConditionError, Moment, RowTest, compiled
from headrace.sinks.configuration import parse_sinks
from headrace.sinks.routing import Router, UnroutableError
from headrace.sinks.templates import TemplateError, template

NAN = float("nan")


def event(operation: str, data: dict[str, Any], **more: Any) -> Event:
    payload: dict[str, Any] = {
        "msg_id": "1",
        "operation": operation,
        "key": ["id"],
        "data": data,
        "tx": {"xid": 7, "lsn": 100, "seq": 0, "last": True},
        **more,
    }
    table = "" if operation == "MESSAGE" else "users"
    schema = table and "public"
    return Event("s", schema, table, operation, Position(100, 0), payload, "", 1, "s", True)


def router(keys: str) -> Router:
    text = f'[[sink]]\nname = "a"\nto = "file:///x"\n{keys}'
    (found,) = parse_sinks(text, "x", {}).values()
    return router_of(found)


def operations(keys: str, one: Event) -> list[str]:
    return [record.event.operation for record in router(keys).records(one)]


EU = 'where = [["region", "=", "eu"]]'


@pytest.mark.parametrize(
    ("before", "after", "becomes"),
    [
        ("eu", "eu", ["UPDATE"]),
        ("eu", "us", ["DELETE"]),
        ("us", "eu", ["INSERT"]),
        ("us", "us", []),
    ],
)
def test_an_update_that_crosses_the_condition_is_an_insert_or_a_delete(
    before: str, after: str, becomes: list[str]
) -> None:
    old = {"id": 1, "region": before}
    one = event("UPDATE", {"id": 1, "region": after}, old=old)
    assert operations(EU, one) == becomes


def test_an_update_out_of_the_condition_is_a_delete_if_the_old_row_is_unknown() -> None:
    assert operations(EU, event("UPDATE", {"id": 1, "region": "us"})) == ["DELETE"]
    assert operations(EU, event("UPDATE", {"id": 1, "region": "eu"})) == ["UPDATE"]


def test_inserts_and_deletes_of_other_rows_are_left_out() -> None:
    assert operations(EU, event("INSERT", {"id": 1, "region": "eu"})) == ["INSERT"]
    assert operations(EU, event("INSERT", {"id": 1, "region": "us"})) == []
    full = {"id": 1, "region": "us"}
    assert operations(EU, event("DELETE", {"id": 1, "region": None}, old=full)) == []
    assert operations(EU, event("DELETE", {"id": 1, "region": None}, old={"id": 1})) == ["DELETE"]


def test_a_condition_on_the_key_needs_no_old_row() -> None:
    keys = 'where = [["id", "<", 10]]'
    assert operations(keys, event("UPDATE", {"id": 1, "region": "us"})) == ["UPDATE"]
    assert operations(keys, event("UPDATE", {"id": 11, "region": "us"})) == []


def test_an_unchanged_large_value_is_taken_from_the_old_row() -> None:
    old = {"id": 1, "region": "eu", "name": "a"}
    one = event("UPDATE", {"id": 1, "name": "b"}, old=old, unchanged=["region"])
    assert operations(EU, one) == ["UPDATE"]
    with pytest.raises(ConditionError, match="REPLICA IDENTITY FULL"):
        operations(EU, event("UPDATE", {"id": 1, "name": "b"}, unchanged=["region"]))


def test_a_delete_that_an_update_became_has_only_the_old_key() -> None:
    old = {"id": 9, "region": "eu"}
    one = event("UPDATE", {"id": 1, "region": "us"}, old=old, exact={"region": "us"})
    (record,) = router(EU).records(one)
    assert record.event.data == {"id": 9, "region": None}
    assert (record.key, record.event.exact) == (b"[9]", {})


def test_columns_are_cut_everywhere_but_the_key() -> None:
    old = {"id": 2, "name": "a", "region": "b"}
    one = event("UPDATE", {"id": 1, "name": "a"}, old=old, unchanged=["region"])
    *_, record = router('columns = ["name"]').records(one)
    assert record.event.data == {"id": 1, "name": "a"}
    assert record.event.old == {"id": 2, "name": "a"}
    assert record.event.unchanged == []


def test_tables_and_operations_choose_events_and_gaps_always_come() -> None:
    assert operations('tables = ["orders"]', event("INSERT", {"id": 1})) == []
    assert operations('tables = ["u*"]', event("INSERT", {"id": 1})) == ["INSERT"]
    assert operations('operations = ["delete"]', event("INSERT", {"id": 1})) == []
    assert operations('operations = ["delete"]', event("GAP", {})) == ["GAP"]


def test_a_skip_mark_leaves_the_whole_transaction_out_of_the_sinks_it_names() -> None:
    mark = event("MESSAGE", {}, prefix="headrace:skip", content="other, a")
    row = event("INSERT", {"id": 1})
    for order in ((mark, row), (row, mark)):
        assert router("").route(Transaction(order, ends=True)) is None
    other = event("MESSAGE", {}, prefix="headrace:skip", content="b")
    routed = router("").route(Transaction((row, other), ends=True))
    assert routed is not None
    assert [record.event.operation for record in routed.records] == ["INSERT"]


def test_a_skip_mark_in_a_later_part_comes_too_late_and_tears_nothing() -> None:
    one = router("")
    mark = event("MESSAGE", {}, prefix="headrace:skip", content="a")
    row = event("INSERT", {"id": 1})
    assert one.route(Transaction((row,), ends=False)) is not None
    assert one.route(Transaction((row, mark), ends=True)) is not None
    assert one.route(Transaction((mark, row), ends=False)) is None
    assert one.route(Transaction((row,), ends=True)) is None


def shout(one: Event) -> Event | None:
    if one.operation == "DELETE":
        return None
    return one._replace(payload={**one.payload, "data": {"id": 1, "name": "LOUD"}})


def broken(_: Event) -> Event:
    raise KeyError("a row's value")


def test_a_programs_function_changes_events_or_leaves_them_out() -> None:
    keys = f'function = "{__name__}:shout"'
    (record,) = router(keys).records(event("INSERT", {"id": 1, "name": "quiet"}))
    assert record.event.data["name"] == "LOUD"
    assert operations(keys, event("DELETE", {"id": 1})) == []


def test_a_functions_error_names_the_event_and_no_value() -> None:
    one = router(f'function = "{__name__}:broken"')
    with pytest.raises(UnroutableError) as raised:
        one.route(Transaction((event("INSERT", {"id": 1}),), ends=True))
    assert "1 can't be routed: KeyError" in str(raised.value)
    assert "value" not in str(raised.value)


@pytest.mark.parametrize(
    ("operator", "literal", "value", "expected"),
    [
        ("=", 1, 1, True),
        ("=", 1.1, "1.10", True),
        (">", 1.1, "1.10000000000000000001", True),
        ("=", 0.1, 0.1, True),
        (">", 1e300, NAN, True),
        ("<", 1, "NaN", False),
        ("=", 1, None, False),
        ("<>", 1, None, False),
        ("in", ("a", "b"), "b", True),
        ("=", True, False, False),
        ("is null", None, None, True),
        ("is not null", None, None, False),
        (">=", Moment("2026-01-01T00:00:00+00:00"), "2026-01-01T00:00:00Z", True),
        ("<", Moment("2026-01-01"), "2025-12-31", True),
        ("<", Moment("2026-01-01"), "infinity", False),
        ("<", Moment("2026-01-01"), "0044-03-15 BC", True),
        (">", Moment("2026-01-01"), "10000-01-01", True),
    ],
)
def test_a_condition_compares_as_postgresql_does(
    operator: str, literal: Any, value: Any, expected: bool
) -> None:
    assert compiled([RowTest("c", operator, literal)])({"c": value}) is expected


@pytest.mark.parametrize(
    ("literal", "value"),
    [(1, "one"), ("a", 1), (True, 1), (Moment("2026-01-01"), "soon"), (1, True)],
)
def test_a_value_of_another_type_is_an_error_without_the_value(literal: Any, value: Any) -> None:
    with pytest.raises(ConditionError) as refused:
        compiled([RowTest("c", "=", literal)])({"c": value})
    assert "c can't be compared" in str(refused.value)


def test_a_literal_must_fit_the_columns_type() -> None:
    text = '[[sink]]\nname = "a"\nto = "file:///x"\nwhere = [["price", "=", "1.5"]]'
    (found,) = parse_sinks(text, "x", {}).values()
    check_columns(found, "public", "users", {"price": "text"})
    with pytest.raises(ConditionError, match="price is numeric"):
        check_columns(found, "public", "users", {"price": "numeric(10,2)"})


@pytest.mark.parametrize(
    ("literal", "fitting", "other"),
    [
        ("2026-01-01T00:00:00Z", "timestamp(3) with time zone", "timestamp without time zone"),
        ("2026-01-01T00:00:00", "timestamp without time zone", "timestamp with time zone"),
        ("2026-01-01", "date", "timestamp with time zone"),
    ],
)
def test_a_time_must_have_an_offset_where_the_column_does(
    literal: str, fitting: str, other: str
) -> None:
    text = f'[[sink]]\nname = "a"\nto = "file:///x"\nwhere = [["at", ">=", {literal}]]'
    (found,) = parse_sinks(text, "x", {}).values()
    check_columns(found, "public", "users", {"at": fitting})
    with pytest.raises(ConditionError, match="offset, such as Z"):
        check_columns(found, "public", "users", {"at": other})


def test_a_template_has_the_events_values() -> None:
    fill = template("x.{schema}.{table}.{operation}.{data.on}")
    assert fill(event("INSERT", {"id": 1, "on": True})) == "x.public.users.insert.true"
    with pytest.raises(TemplateError, match="no value of on"):
        fill(event("DELETE", {"id": 1, "on": None}, old={"id": 1}))


@pytest.mark.parametrize("text", ["", "{", "{data.}", "{key}", "{schema!r}", "{table:>3}"])
def test_a_template_that_can_not_be_filled_in_is_refused(text: str) -> None:
    with pytest.raises(TemplateError):
        template(text)
