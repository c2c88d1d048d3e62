"""Small faults put into source text, one at a time. Pure.

Promises text that still compiles and differs in one place; nothing that only changes words for
people (messages of errors, logs, docstrings) nor types.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_CALCULATED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
}
# Calls whose arguments are for people, or for a dashboard; and super(), without which a function's
# code no longer fits into its class.
_WORDS = frozenset(
    {"log", "logs", "warning", "info", "error", "debug", "count", "failpoint", "super"}
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault: the text from `begin` to `end` (offsets) is replaced."""

    function: str
    first_line: int
    line: int
    begin: int
    end: int
    text: str
    what: str
    # The line that it is in, without its comment.
    code: str

    def apply(self, source: str) -> str:
        return source[: self.begin] + self.text + source[self.end :]


def mutations(source: str) -> list[Mutation]:
    """Every fault that can be put into a module's functions."""
    tree = ast.parse(source)
    starts = _line_starts(source)
    lines = source.splitlines()
    found: list[Mutation] = []
    for function, first_line in _functions(tree):
        for node in _inside(function):
            for part, text, what in _faults(node):
                begin, end = _offsets(part, starts, source)
                code = lines[part.lineno - 1].partition("  # ")[0].strip()
                made = Mutation(
                    function.name, first_line, part.lineno, begin, end, text, what, code
                )
                if _compiles(made.apply(source)):
                    found.append(made)
    return found


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = [decorator.lineno for decorator in node.decorator_list]
            yield node, min([node.lineno, *decorators])


def _inside(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The function's own nodes, without nested functions, annotations and words for people."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Raise | ast.Assert
        ) or _is_words(node):
            continue
        yield node
        waiting += [child for field, child in _children(node) if field != "annotation"]


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def _is_words(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Expr):
        return _is_words(node.value)
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    names = {part.id for part in ast.walk(called) if isinstance(part, ast.Name)}
    names |= {part.attr for part in ast.walk(called) if isinstance(part, ast.Attribute)}
    return bool(names & _WORDS)


def _faults(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """The possible faults of a node: the part to replace, its new text, and a description."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        before, after = _COMPARED[type(node.ops[0])]
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield node, f"({left} {after} {right})", f"{before} became {after}"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield (
            node,
            f"({word.join(f'({ast.unparse(value)})' for value in node.values)})",
            f"joined by{word.rstrip()}",
        )
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"bool({ast.unparse(node.operand)})", "not was lost"
    elif isinstance(node, ast.BinOp) and type(node.op) in _CALCULATED:
        sign = _CALCULATED[type(node.op)]
        yield (
            node,
            f"({ast.unparse(node.left)} {sign} {ast.unparse(node.right)})",
            f"calculated by {sign}",
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value), f"{node.value} became {not node.value}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield node, str(node.value + 1), f"{node.value} became {node.value + 1}"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield node, "pass", f"left out: {ast.unparse(node.value)[:60]}"
    elif isinstance(node, ast.Break | ast.Continue):
        word = "continue" if isinstance(node, ast.Break) else "break"
        yield node, word, f"became {word}"


def _line_starts(source: str) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _offsets(node: ast.expr | ast.stmt, starts: list[int], source: str) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (
        _offset(node.lineno, node.col_offset, starts, source),
        _offset(node.end_lineno, node.end_col_offset, starts, source),
    )


def _offset(line: int, column: int, starts: list[int], source: str) -> int:
    """Columns count bytes of UTF-8."""
    text = source[starts[line - 1] : starts[line] if line < len(starts) else len(source)]
    return starts[line - 1] + len(text.encode()[:column].decode())


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
