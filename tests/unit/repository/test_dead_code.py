"""Every declared name is used: by the libraries, the services, the examples or the deployment, and
not only by tests.

It compares only names: a name that it finds is certainly dead, and a dead method that has the name
of a used one is not found. A module's own names are compared with what other modules import.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.source_tree import failures, imports, modules, tree

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Used by nobody here.
KEPT = {
    "FilesSink": "named by `headrace.sinks.targets`",
    "KafkaSink": "named by `headrace.sinks.targets`, which imports a sink when it is used",
    "RabbitQueueSink": "named by `headrace.sinks.targets`",
    "RabbitStreamSink": "named by `headrace.sinks.targets`",
    "ValkeySink": "named by `headrace.sinks.targets`",
    "WebhookSink": "named by `headrace.sinks.targets`",
    "encode_entry": "a single entry of a frame; tests compare the packing in bulk with it",
    "FRAME_OVERHEAD_BYTES": "how much larger than its setting a frame may be, as tests check",
    "connection_made": "asyncio calls it",
    "to_input_file": "PyIceberg calls it",
    "new_writer": "PyIceberg calls it",
    "streamReader": "Spark calls it",
    "pushFilters": "Spark calls it",
    "initialOffset": "Spark calls it",
    "latestOffset": "Spark calls it",
    "getDefaultReadLimit": "Spark calls it",
    "reportLatestOffset": "Spark calls it",
    "prepareForTriggerAvailableNow": "Spark calls it",
}
# Libraries for tests.
FOR_TESTS = (Path("libs/headrace/testing"), Path("libs/headrace/embedded"))


WORD = re.compile(r"\w+")


@cache
def used(*places: str) -> frozenset[str]:
    """Every name that is read, imported, or a string that may be one."""
    found = set()
    for module in modules(*places):
        for node in ast.walk(tree(module)):
            match node:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    found.add(name)
                case ast.alias(name=name):
                    found.add(name.rpartition(".")[2])
                case ast.Constant(value=str() as text) if text.isidentifier():
                    found.add(text)
    return frozenset(found)


def declared(module: Path) -> Iterator[tuple[str, int]]:
    """A module's functions, classes with their methods, and constants; what a decorator registers
    is used by it.
    """
    for node in tree(module).body:
        if isinstance(node, Function) and not node.decorator_list:
            yield node.name, node.lineno
        elif isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
            yield from (
                (part.name, part.lineno) for part in node.body if isinstance(part, Function)
            )
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [
                name
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            ]
            yield from ((name.id, name.lineno) for name in names)


@cache
def imported(*places: str) -> frozenset[str]:
    """The names that other modules may mean: full ones where they are imported, `.name` for
    attributes and for words of strings that may name an object.
    """
    found = set()
    for module in modules(*places):
        found |= imports(module)
        for node in ast.walk(tree(module)):
            match node:
                case ast.Attribute(attr=name):
                    found.add(f".{name}")
                case ast.Constant(value=str() as text) if not re.search(r"\s", text):
                    found |= {f".{word}" for word in WORD.findall(text)}
    return frozenset(found)


def own_names(module: Path) -> Iterator[tuple[str, int]]:
    """The names that a module declares at its top, and does not read."""
    read = {
        node.id
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    inside = {
        part.lineno
        for node in tree(module).body
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, Function)
    }
    for name, line in declared(module):
        if name not in read and line not in inside and not name.startswith("__"):
            yield name, line


def full_name(module: Path) -> str:
    """The name under which others import it."""
    parts = module.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_a_modules_own_names_are_read_there_or_imported_from_there() -> None:
    places = ("libs", "services", "examples", "deploy")
    found = []
    for module in modules("libs", "services"):
        for_tests = any(module.is_relative_to(place) for place in FOR_TESTS)
        known = imported(*places, "tests") if for_tests else imported(*places)
        found += [
            f"{module}:{line} {name} is used by nothing"
            for name, line in own_names(module)
            if name not in KEPT and not {f"{full_name(module)}.{name}", f".{name}"} & known
        ]
    failures(found)


def test_nothing_is_declared_that_nobody_uses() -> None:
    known = used("libs", "services", "examples", "deploy")
    found, kept = [], set()
    for module in modules("libs", "services"):
        names = (
            known | used("tests")
            if any(module.is_relative_to(place) for place in FOR_TESTS)
            else known
        )
        for name, line in declared(module):
            if name in KEPT:
                kept.add(name)
            elif name not in names and not name.startswith("__"):
                found.append(f"{module}:{line} {name} is used by nothing")
    failures(found)
    assert kept == KEPT.keys(), "these are no longer declared"
    assert not KEPT.keys() & known, "these are used by now"
