"""The row before a change, and the tables of a revert: what the trail proves and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.audit.history import Known, TrailRow
from headrace.audit.revert import IrreversibleError, RowImage, ValueForm
from headrace.cli.audit.former_rows import FormerRows
from headrace.cli.audit.source_tables import SourceTables
from headrace.contract import type_oids
from headrace.contract.values import JsonForm
from headrace.lsn import Position
from tests.support.reverted_rows import (
    DELETE,
    INT,
    TABLE,
    TEXT,
    UPDATE,
    Source,
    Trail,
    change,
)

pytestmark = pytest.mark.usefixtures("described_tables")


def tables(source: Source, **more: Any) -> SourceTables:
    given: Any = source
    return SourceTables(given, **{"json_values": JsonForm.NATIVE, **more})


async def test_columns_have_the_form_of_what_their_domains_stand_on() -> None:
    source = Source()
    source.columns = {
        "id": INT,
        "j": type_oids.JSON,
        "b": type_oids.JSONB,
        "x": type_oids.BYTEA,
        "d": type_oids.FIRST_USER,
    }
    source.generated = {"x"}
    found = (await tables(source).table("public", "users")).columns
    assert [column.kind for column in found.values()] == [
        ValueForm.OTHER,
        ValueForm.DOCUMENT,
        ValueForm.DOCUMENT,
        ValueForm.BINARY,
        ValueForm.DOCUMENT,
    ]
    assert [column.number for column in found.values()] == [1, 2, 3, 4, 5]
    assert [name for name, column in found.items() if column.generated] == ["x"]
    assert not any(column.as_text or column.left for column in found.values())
    texts = await tables(source, json_values=JsonForm.TEXT).table("public", "users")
    assert all(column.as_text for column in texts.columns.values())


async def test_a_table_is_described_once_and_held_by_a_reading() -> None:
    source = Source()
    described = tables(source)
    first = await described.table("public", "users")
    assert await described.table("public", "users") is first
    assert await described.files(("public", "users")) == (5, frozenset({"1:1", "1:2"}))
    assert [text for text, _ in source.executed] == ['SELECT FROM "public"."users" LIMIT 0']
    assert (first.key, first.quoted) == (("id",), '"public"."users"')


async def test_a_table_that_is_gone_is_refused() -> None:
    source = Source()
    source.columns = {}
    with pytest.raises(IrreversibleError, match=r"public.users no longer exists"):
        await tables(source).table("public", "users")


def former(source: Source | None = None) -> FormerRows:
    nothing: Any = None
    return FormerRows(nothing, TABLE, tables(source or Source()))


async def test_a_whole_old_row_is_taken_as_it_was_sent(trail: Trail) -> None:
    exact = '{"before": {"a": "1.50"}, "after": {"a": "2.50"}}'
    whole = change(before={"id": 1, "a": 1.5}, after={"id": 1, "a": 2.5}, exact=exact)
    found = await former().before(whole)
    assert (dict(found.values), found.exact) == ({"id": 1, "a": 1.5}, {"a": "1.50"})
    assert not found.unsure
    earlier_version = {**UPDATE, "exact": "null"}
    assert set((await former().before(earlier_version)).unsure) == {"id", "a"}
    assert trail.asked == []


@pytest.mark.parametrize(
    ("part", "key"),
    [
        (change(before={}, after={"id": 1, "a": "is"}), "1"),
        (change(before={"id": 9}, after={"id": 1, "a": "is"}), "9"),
        (change(before={"id": 1, "a": "x"}, after={"id": 1, "a": "x"}, unchanged=["big"]), "1"),
    ],
    ids=["nothing was sent", "its old key", "a large value is missing"],
)
async def test_an_old_row_that_is_not_whole_is_what_earlier_changes_left(
    trail: Trail, part: dict[str, Any], key: str
) -> None:
    earlier = change("CREATE", position=60)
    trail.earlier = TrailRow({"id": 1}, [], earlier, {"a": "1"}, {"id"}, earlier)
    found = await former().before(part)
    assert found == RowImage({"id": 1}, {"a": "1"}, {"id"})
    _, _, names, old_key, _, _, database = trail.asked[0]
    assert (names, old_key, database) == (("public", "users"), key, "db")


EARLIER = change("CREATE", position=60)


@pytest.mark.parametrize(
    ("row", "match"),
    [
        (TrailRow(None), "are not known"),
        (TrailRow({"id": 1}, ["a", "b"], EARLIER, oldest=EARLIER), "are not known: a, b"),
        (TrailRow({"id": 1}, [], EARLIER), "are not known"),
    ],
)
async def test_what_earlier_changes_do_not_have_is_not_guessed(
    trail: Trail, row: TrailRow, match: str
) -> None:
    trail.earlier = row
    with pytest.raises(IrreversibleError) as refused:
        await former().before(change(after={"id": 1}))
    assert refused.value.args[0] == f"the former values of a row of users {match}"


async def test_a_gap_since_an_earlier_change_is_refused(trail: Trail) -> None:
    trail.earlier = TrailRow({"id": 1}, [], EARLIER, oldest=EARLIER)
    trail.gap = "slot_moved"
    with pytest.raises(IrreversibleError, match=r"may be missing \(slot_moved\)"):
        await former().before(change(after={"id": 1}))


@pytest.mark.parametrize(
    "known",
    [
        None,
        Known(5, Position(61, 0), "1:1"),
        Known(6, Position(50, 0), "1:1"),
        Known(5, Position(50, 0), "1:1,1:9"),
    ],
    ids=["nothing", "since later", "of another relation", "other files"],
)
async def test_an_earlier_change_counts_only_where_the_trail_has_all_since(
    trail: Trail, known: Known | None
) -> None:
    trail.earlier = TrailRow({"id": 1}, [], EARLIER, oldest=EARLIER)
    await former().before(change(after={"id": 1}))
    trail.known = known
    with pytest.raises(IrreversibleError, match="what a row of users was before is not known"):
        await former().before(change(after={"id": 1}))


async def test_a_deleted_row_is_whole_if_it_has_every_column_that_was_there_and_is(
    trail: Trail,
) -> None:
    written = change(after={"id": 1, "a": "x", "dropped": 1})
    trail.written = [written, None]
    assert (await former().before(DELETE)).values == {"id": 1, "a": "was"}
    trail.written = [None, None]
    assert (await former().before(DELETE)).values == {"id": 1, "a": "was"}
    key_alone = change("DELETE", before={"id": 1})
    trail.earlier = TrailRow({"id": 1, "a": "y"}, [], EARLIER, oldest=EARLIER)
    for before, by_now in ((written, None), (None, written), (None, None)):
        trail.written = [before, by_now]
        assert (await former().before(key_alone)).values == {"id": 1, "a": "y"}


async def test_a_key_is_a_whole_row_only_where_the_table_had_no_other_column(
    trail: Trail,
) -> None:
    narrow = change(after={"id": 1}, position=60)
    trail.written = [narrow, None]
    key_alone = change("DELETE", before={"id": 1})
    assert (await former().before(key_alone)).values == {"id": 1}
    trail.known = None
    with pytest.raises(IrreversibleError, match="what a row of users was before is not known"):
        await former().before(key_alone)
    source = Source()
    source.generated = {"a"}
    assert (await former(source).before(key_alone)).values == {"id": 1}, "it has no other"


async def columns_left_out(
    trail: Trail, side: dict[str, Any], unchanged: tuple[str, ...] = (), **columns: int
) -> None:
    source = Source()
    source.columns = {"id": INT, "a": TEXT, **columns}
    made = former(source)
    table = await made.tables.table("public", "users")
    await made.require_all_columns(UPDATE, table, RowImage(side), unchanged)


async def test_a_column_that_was_added_later_is_no_part_of_the_change(trail: Trail) -> None:
    with_it = change(after={"id": 1, "a": 1, "new": 1})
    without = change(after={"id": 1, "a": 1})
    trail.written = [without, with_it]
    await columns_left_out(trail, {"id": 1, "a": 1}, new=TEXT)
    await columns_left_out(trail, {"id": 1, "a": 1})
    await columns_left_out(trail, {"id": 1}, ("a",))
    trail.written = [without, without]
    with pytest.raises(IrreversibleError, match="does not have these columns of users: new"):
        await columns_left_out(trail, {"id": 1, "a": 1}, new=TEXT)
    trail.written = [with_it, with_it]
    with pytest.raises(IrreversibleError, match="does not have these columns of users: new"):
        await columns_left_out(trail, {"id": 1, "a": 1}, new=TEXT)


async def test_a_column_before_one_that_the_change_has_was_left_out(trail: Trail) -> None:
    trail.written = [change(after={"id": 1}), change(after={"id": 1, "a": 1, "b": 1})]
    with pytest.raises(IrreversibleError, match="does not have these columns of users: a"):
        await columns_left_out(trail, {"id": 1, "b": 1}, b=TEXT)
