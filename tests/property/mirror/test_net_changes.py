"""Folded steps leave the rows that the steps leave one by one, and none of them is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.mirror.folding import FoldedChanges, Folding, Key, KeyOf
from headrace.mirror.table import Column, Table
from headrace.mirror.target import (
    DeleteRow,
    InsertRows,
    RemoveSoftDeleted,
    Step,
    TruncateTable,
    UpdateRow,
)

COLUMNS = (Column("id", "integer"), Column("k", "text"), Column("n", "integer"))
PAIR = Table("app", "pair", COLUMNS, ("id", "k"), ("id", "k"))
SINGLE = Table("app", "single", COLUMNS, ("id",), ("id",))
# Its replica identity is the whole row, which several rows may have.
WHOLE = Table("app", "whole", COLUMNS, (), ("id", "k", "n"))
TABLES = (PAIR, SINGLE, WHOLE)

Row = dict[str, Any]
Rows = dict[str, list[Row]]

some_rows = st.fixed_dictionaries(
    {"id": st.integers(0, 3), "k": st.sampled_from("ab"), "n": st.none() | st.integers(0, 2)}
)


def key_of(table: Table) -> KeyOf:
    def key(row: Mapping[str, Any]) -> Key:
        return tuple(str(row[name]) for name in table.identity)

    return key


def the_row(rows: list[Row], where: Mapping[str, Any]) -> Row:
    """Any one of several equal rows."""
    return next(row for row in rows if where.items() <= row.items())


def done(rows: list[Row], step: Step) -> None:
    """As a target does the step, which its source has done before."""
    match step:
        case InsertRows(_, new):
            rows += [dict(row) for row in new]
        case UpdateRow(_, where, data):
            the_row(rows, where).update(data)
        case DeleteRow(_, where):
            rows.remove(the_row(rows, where))
        case TruncateTable():
            rows.clear()


def done_together(rows: list[Row], net: FoldedChanges) -> None:
    names = net.table.identity
    for where in net.deleted.values():
        rows.remove(the_row(rows, where))
    for where, data in net.updated.values():
        the_row(rows, where).update(data)
    for new in net.inserted.values():
        assert not any(all(row[name] == new[name] for name in names) for row in rows)
        rows.append(dict(new))
    rows += [dict(row) for row in net.appended]


class Source:
    """Its tables keep their keys unique after each step."""

    def __init__(self) -> None:
        self.rows: Rows = {table.name: [] for table in TABLES}
        self.steps: list[Any] = []

    def fits(self, table: Table, row: Row, instead_of: Row | None = None) -> bool:
        if table.name == "whole":
            return True
        others = [one for one in self.rows[table.name] if one is not instead_of]
        return key_of(table)(row) not in map(key_of(table), others)

    def do(self, step: Any) -> None:
        self.steps.append(step)
        done(self.rows[step.table.name], step)

    def insert(self, table: Table, rows: list[Row]) -> None:
        keys = [key_of(table)(row) for row in rows]
        unique = table.name == "whole" or len({*keys}) == len(keys)
        if rows and unique and all(self.fits(table, row) for row in rows):
            self.do(InsertRows(table, rows))

    def change(self, table: Table, old: Row, data: Row) -> None:
        if self.fits(table, {**old, **data}, instead_of=old):
            self.do(UpdateRow(table, {name: old[name] for name in table.identity}, data))


@st.composite
def sources(draw: st.DrawFn) -> Source:
    source = Source()
    for _ in range(draw(st.integers(0, 25))):
        table = draw(st.sampled_from(TABLES))
        # The same shape, described again.
        table = draw(st.sampled_from((table, replace(table))))
        rows = source.rows[table.name]
        what = draw(st.sampled_from("IIUUUDDT"))
        if what == "T" and draw(st.booleans()):
            source.do(TruncateTable(table))
        elif what == "I" or not rows:
            source.insert(table, draw(st.lists(some_rows, max_size=3)))
        else:
            old = draw(st.sampled_from(rows))
            if what == "U":
                names = draw(st.sets(st.sampled_from(("id", "k", "n"))))
                new = draw(some_rows)
                source.change(table, old, {name: new[name] for name in sorted(names)})
            elif what == "D":
                source.do(DeleteRow(table, {name: old[name] for name in table.identity}))
    return source


def counted(rows: Rows) -> dict[str, Counter[str]]:
    return {name: Counter(str(sorted(row.items())) for row in some) for name, some in rows.items()}


@given(sources(), st.lists(st.integers(0, 25)))
def test_net_changes_leave_the_rows_that_their_steps_leave(
    source: Source, commits: list[int]
) -> None:
    folding, rows = Folding(key_of), {table.name: list[Row]() for table in TABLES}

    def commit() -> None:
        for parts in folding.take():
            names = [part.table.name for part in parts]
            assert len({*names}) == len(names), "they are applied in any order"
            for part in parts:
                if isinstance(part, FoldedChanges):
                    done_together(rows[part.table.name], part)
                else:
                    done(rows[part.table.name], part)

    for number, step in enumerate(source.steps):
        folding.add(step)
        if number in commits:
            commit()
    commit()
    assert counted(rows) == counted(source.rows)


def test_changes_of_one_row_are_one_change_and_of_no_row_are_none() -> None:
    one = {"id": 1, "k": "a", "n": 0}
    where = {"id": 1}
    folding = Folding(key_of)
    folding.add(UpdateRow(SINGLE, where, {}))
    folding.add(UpdateRow(SINGLE, where, {"n": 1}))
    folding.add(UpdateRow(SINGLE, where, {"id": 1, "k": "b"}))
    ((net,),) = folding.take()
    assert net == FoldedChanges(SINGLE, updated={("1",): (where, {"n": 1, "id": 1, "k": "b"})})
    folding.add(InsertRows(SINGLE, [one]))
    folding.add(DeleteRow(SINGLE, where))
    ((net,),) = folding.take()
    assert net == FoldedChanges(SINGLE)


def test_what_names_no_rows_by_their_identity_stays_as_it_is() -> None:
    marked = RemoveSoftDeleted(SINGLE, [{"id": 1}])
    folding = Folding(key_of)
    steps: list[Any] = [
        TruncateTable(SINGLE),
        marked,
        DeleteRow(SINGLE, {"id": None}),
        UpdateRow(SINGLE, {"id": 1}, {"id": 2}),
        DeleteRow(SINGLE, {"id": 1, "k": "a", "n": None}),
    ]
    for step in steps:
        folding.add(step)
    assert [part for (part,) in folding.take()] == steps
