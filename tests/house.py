"""`./taskw house`: the shape of the code in figures, each with its limit.

The limits are a budget: `tests/unit/repository/test_house.py` fails when a figure is beyond its limit, so a
figure can only get better. Read from syntax trees and tokens; nothing is imported or run.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("libs", "services")
# The package of test helpers counts as tests.
TESTING = Path("libs/headrace/testing")
COLUMNS_MAX = 100
# Class names that stand twice on purpose, with the reason.
TWICE: dict[str, str] = {}
# Attributes that a library's class creates and our subclass of it assigns, with their owner.
OF_A_LIBRARY: dict[str, tuple[str, frozenset[str]]] = {
    "BulkParser": (
        "nats-py's Parser.reset, which Parser.__init__ calls",
        frozenset({"buf", "header_needed", "msg_arg", "needed", "state"}),
    ),
    "_Client": ("nats-py's Client.__init__", frozenset({"_transport"})),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A count or a share; the budget that it keeps today, and the goal that the budget nears."""

    name: str
    value: float
    budget: float
    goal: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self._is_within(self.budget)

    @property
    def is_at_its_goal(self) -> bool:
        return self._is_within(self.goal)

    def _is_within(self, limit: float) -> bool:
        if self.at_least:
            return self.value >= limit
        return self.value <= limit


@dataclass(frozen=True, slots=True)
class Module:
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def modules(*places: str) -> list[Module]:
    found = []
    for place in places:
        for path in sorted((ROOT / place).rglob("*.py")):
            text = path.read_text()
            found.append(Module(path.relative_to(ROOT), text, ast.parse(text)))
    return found


def figures() -> list[Figure]:
    source = [m for m in modules(*SOURCES) if not m.path.is_relative_to(TESTING)]
    tests = [*modules("tests"), *modules(str(TESTING))]
    nodes = [node for module in source for node in ast.walk(module.tree)]
    lines = sum(len(module.lines) for module in source)
    root = [path for path in (ROOT / "libs/headrace").glob("*.py") if path.stem != "__init__"]
    share = sum(len(module.lines) for module in tests) / lines
    longest = max(len(module.lines) for module in source)
    ternaries = per(nodes, is_ternary, lines)
    parallels = per(nodes, is_parallel, lines)
    remarks = 100 * comments(source) / lines
    return [
        Figure("lines over 100 columns", len(list(long_lines(source))), 0, 0),
        Figure("conditional expressions per 1,000 lines", ternaries, 7, 7),
        Figure("nested conditional expressions", sum(map(is_nested, nodes)), 0, 0),
        Figure("parallel assignments per 1,000 lines", parallels, 3, 3),
        Figure("comment lines, percent", remarks, 5, 5, at_least=True),
        Figure("class names that stand twice", len(homonyms(source)), 3, 3),
        Figure("attributes first set outside __init__", len(list(late(source))), 0, 0),
        Figure("modules in the root of libs", len(root), 4, 4),
        Figure("lines of the longest module", longest, 500, 500),
        Figure("lines of the longest function", max(map(length, nodes)), 60, 60),
        Figure("statements", sum(map(is_statement, nodes)), 60_000, 22_000),
        Figure("lines of tests per line of source", share, 1, 1, at_least=True),
    ]


def per(nodes: list[ast.AST], judge: Callable[[ast.AST], bool], lines: int) -> float:
    return 1000 * sum(map(judge, nodes)) / lines


def long_lines(source: list[Module]) -> Iterator[str]:
    for module in source:
        for number, line in enumerate(module.lines, 1):
            if len(line) > COLUMNS_MAX:
                yield f"{module.path}:{number}"


def is_ternary(node: ast.AST) -> bool:
    return isinstance(node, ast.IfExp)


def is_nested(node: ast.AST) -> bool:
    inner = (child for child in ast.walk(node) if child is not node)
    return is_ternary(node) and any(map(is_ternary, inner))


def is_parallel(node: ast.AST) -> bool:
    """`a, b = 1, 2`, or `a = b = 1`."""
    if not isinstance(node, ast.Assign):
        return False
    pair = isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    return pair or len(node.targets) > 1


def is_statement(node: ast.AST) -> bool:
    """A statement of any layout; a docstring is not one."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return isinstance(node, ast.stmt) and not is_text


def length(node: ast.AST) -> int:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    return (node.end_lineno or node.lineno) - node.lineno + 1


def comments(source: list[Module]) -> int:
    """Count lines that consist of a comment; one after a statement, or for a linter, doesn't count."""
    found = 0
    for module in source:
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            found += token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
    return found


def homonyms(source: list[Module]) -> dict[str, list[str]]:
    """Public classes of the same name."""
    places: dict[str, list[str]] = {}
    for module in source:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{module.path}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1 and name not in TWICE}


def late(source: list[Module]) -> Iterator[str]:
    """Attributes that an object gets only after its creation."""
    classes = {
        node.name: node
        for module in source
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    for module in source:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                born = born_late(node) - inherited(node, classes)
                yield from (f"{module.path} {node.name}.{name}" for name in sorted(born))


def born_late(node: ast.ClassDef) -> set[str]:
    early = created(node)
    late = set()
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not is_init(part):
            late |= set(set_in(part))
    return late - early if early else set()


def inherited(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The attributes that its base classes create: ours, and those of libraries."""
    found: set[str] = set()
    if node.name in OF_A_LIBRARY:
        found |= OF_A_LIBRARY[node.name][1]
    for base in node.bases:
        known = classes.get(base.id) if isinstance(base, ast.Name) else None
        if known is not None and known is not node:
            found |= created(known) | inherited(known, classes)
    return found


def created(node: ast.ClassDef) -> set[str]:
    """The attributes that a class declares, or sets in `__init__`."""
    found = set()
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
        elif isinstance(part, ast.FunctionDef) and is_init(part):
            found |= set(set_in(part))
    return found


def is_init(part: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return part.name in ("__init__", "__post_init__")


def set_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr


def main() -> int:
    found = figures()
    for figure in found:
        mark = "·"
        if figure.is_at_its_goal:
            mark = "✓"
        if not figure.holds:
            mark = "✗"
        sign = "≥" if figure.at_least else "≤"
        limits = f"{sign} {figure.budget:<8,g} goal {figure.goal:,g}"
        print(f"{mark} {figure.name:42} {figure.value:9,.1f}   {limits}")
    if "--list" in sys.argv:
        source = [m for m in modules(*SOURCES) if not m.path.is_relative_to(TESTING)]
        for place in [*long_lines(source), *late(source)]:
            print(place)
        for name, places in sorted(homonyms(source).items()):
            print(name, *places)
        ternaries = Counter(
            str(m.path) for m in source for node in ast.walk(m.tree) if is_ternary(node)
        )
        parallels = Counter(
            str(m.path) for m in source for node in ast.walk(m.tree) if is_parallel(node)
        )
        for what, count in (("ternaries", ternaries), ("parallel", parallels)):
            print(what, *(f"{path}={number}" for path, number in count.most_common(30)))
    return 0 if all(figure.holds for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
