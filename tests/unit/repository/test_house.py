"""The shape of the code keeps its budgets (`./taskw house` prints them)."""

from __future__ import annotations

import ast

import pytest

from tests import house


@pytest.fixture(scope="module")
def figures() -> list[house.Figure]:
    return house.figures()


def test_no_figure_of_the_code_is_beyond_its_budget(figures: list[house.Figure]) -> None:
    assert [f"{f.name}: {f.value:g}, budget {f.budget:g}" for f in figures if not f.holds] == []


def test_a_budget_lies_between_the_figure_and_its_goal(figures: list[house.Figure]) -> None:
    """A figure that has become better takes its budget with it."""
    loose = [f"{f.name}: {f.value:g}, budget {f.budget:g}" for f in figures if is_loose(f)]
    assert loose == []


def is_loose(figure: house.Figure) -> bool:
    """Whether the budget is more than a tenth away from the figure, on the far side of its goal."""
    if figure.is_at_its_goal:
        return False
    return abs(figure.value - figure.budget) > max(1, 0.1 * abs(figure.value))


@pytest.mark.parametrize(
    ("source", "judge", "found"),
    [
        ("a = 1 if b else 2", house.is_ternary, 1),
        ("a = 1 if b else (2 if c else 3)", house.is_nested, 1),
        ("a, b = 1, 2", house.is_parallel, 1),
        ("a = b = 1", house.is_parallel, 1),
        ("a, b = pair()", house.is_parallel, 0),
        ('def f():\n    """Says."""\n    return 1', house.is_statement, 2),
    ],
)
def test_a_judge_sees_what_it_counts(source: str, judge: object, found: int) -> None:
    assert callable(judge)
    assert sum(map(judge, ast.walk(ast.parse(source)))) == found


def test_an_attribute_that_a_method_adds_is_found() -> None:
    [node] = ast.parse(
        "class A:\n    def __init__(self):\n        self.a = 1\n"
        "    def later(self):\n        self.a = 2\n        self.b = 3\n"
    ).body
    assert isinstance(node, ast.ClassDef)
    assert house.born_late(node) == {"b"}
