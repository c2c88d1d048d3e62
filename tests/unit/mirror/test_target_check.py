"""The check of a target: the next step with each table that a mirror would have, or its state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.mirror.checking import CREATED, REFUSED, TargetShape, judged
from headrace.mirror.mirror_state import TABLE
from headrace.mirror.rules import TableRules
from headrace.mirror.table import Column, Phase, Table, TableState
from headrace.mirror.target import TargetError

USERS = Table("app", "users", (Column("id", "integer"),), ("id",), ("id",))
ELSEWHERE = replace(USERS, rules=TableRules(place=("other", "users")))
FOLLOWED = TableState("app", "users", Phase.FOLLOWING, USERS)


def outcome(table: Table, state: TableState | None, *, exists: bool = False) -> str:
    marks = {} if state is None else {TABLE + state.token: state.encode()}
    shape = TargetShape(("id INT",))
    (found,) = judged([table], marks, lambda _: exists, lambda _: shape)
    assert (found.source, found.name) == ("app.users", ".".join(table.place))
    return found.outcome


@pytest.mark.parametrize(
    ("table", "state", "expected"),
    [
        (USERS, None, CREATED),
        (USERS, replace(FOLLOWED, live=None, phase=Phase.WANTED), CREATED),
        (USERS, FOLLOWED, "is followed"),
        (ELSEWHERE, FOLLOWED, "would be copied again, by other rules"),
        (USERS, replace(FOLLOWED, phase=Phase.PARKED, why="no"), "is parked: no"),
        (USERS, replace(FOLLOWED, phase=Phase.LOADING), "is copied again"),
    ],
)
def test_the_outcome_is_the_mirrors_next_step_or_its_state(
    table: Table, state: TableState | None, expected: str
) -> None:
    assert outcome(table, state) == expected


def test_a_table_that_no_mirror_created_is_refused_and_the_mirrors_own_is_not() -> None:
    assert outcome(USERS, None, exists=True) == REFUSED
    assert outcome(ELSEWHERE, FOLLOWED, exists=True) == REFUSED
    assert outcome(USERS, FOLLOWED, exists=True) == "is followed"


def test_a_shape_that_the_target_can_not_have_is_refused_with_its_reason() -> None:
    def shape(_: Table) -> TargetShape:
        raise TargetError("too wide", remedy="Leave columns out.")

    (found,) = judged([USERS], {}, lambda _: False, shape)
    assert found.outcome == REFUSED
    assert "too wide" in found.why
