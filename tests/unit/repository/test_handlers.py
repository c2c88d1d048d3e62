"""Handlers of errors name each class once, and none together with its base class."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

from tests.support.source_tree import (
    ROOTS,
    failures,
    inside,
    modules,
    tree,
)


def caught(node: ast.AST) -> list[ast.expr]:
    """The classes that a handler, or `contextlib.suppress`, names together."""
    if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Tuple):
        return node.type.elts
    if isinstance(node, ast.Call) and "suppress" in {
        getattr(node.func, "id", ""),
        getattr(node.func, "attr", ""),
    }:
        return node.args
    return []


def named_in(module: Path) -> dict[str, str]:
    """The full names of a module's imported names."""
    found: dict[str, str] = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            found |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return found


def test_no_handler_names_a_class_beside_its_base() -> None:
    """(NatsError, APIError) says that the first does not catch refusals; elsewhere they are then
    forgotten.
    """
    found = []
    for module in modules(*ROOTS):
        names = named_in(module)
        for node in ast.walk(tree(module)):
            classes = [(ast.unparse(part), resolved(part, names)) for part in caught(node)]
            found += [
                f"{module}:{getattr(node, 'lineno', 0)} {name} is caught by {base_name}"
                for (name, one), (base_name, base) in permutations(classes, 2)
                if one and base and issubclass(one, base)
            ]
    failures(found)


def resolved(node: ast.expr, names: Mapping[str, str]) -> type[BaseException] | None:
    """The class, if it is Python's or another package's: ours are known only by running their
    modules.
    """
    first, _, rest = ast.unparse(node).partition(".")
    full = names.get(first, f"builtins.{first}") + (f".{rest}" if rest else "")
    if inside(full, "headrace"):
        return None
    owner, _, name = full.rpartition(".")
    try:
        found = getattr(importlib.import_module(owner), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
