"""Generates docs/errors.md, the reference page of all errors, from their classes.

Run as `python -m tests.support.error_names PATH` it writes the page. It reads the sources and
imports none of them: some need packages that not everyone has.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from headrace.errors import HeadraceError

ROOT = Path(__file__).parents[2]
BASE = HeadraceError.__name__
_INTRODUCTION = """\
# Errors

Each error of Headrace says what was wrong, names the setting or object, and says what to do. A command prints one line to
stderr, `headrace: MESSAGE. REMEDY`, and ends with exit code 1; wrong arguments end with 2. A service writes its name
into the log (`event=service_failed error=PortError reason="…"`).

The name is stable: search logs and this page for it. *Tries again* means that the service or command repeats the
attempt automatically, or that you can, without changing anything. If an error has no remedy here, its message has one.

This page is generated from the classes in `libs` and `services`; don't edit it: `./taskw docs:errors`.
"""


@dataclass(frozen=True, slots=True)
class ErrorName:
    """An error as its class describes it."""

    package: str
    name: str
    meaning: str
    remedy: str
    tries_again: bool


def error_names() -> list[ErrorName]:
    """Every class of errors that users may see, by package and name."""
    known = {BASE}
    left = list(_classes())
    found: list[ErrorName] = []
    while derived := [each for each in left if known & _bases(each[1])]:
        left = [each for each in left if each not in derived]
        known |= {node.name for _, node in derived}
        found += [_described(package, node) for package, node in derived]
    return sorted(found, key=lambda each: (each.package, each.name))


def _classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted([*ROOT.glob("libs/headrace/**/*.py"), *ROOT.glob("services/**/*.py")]):
        package = path.relative_to(ROOT).parts[2].removesuffix(".py")
        # The toolkit of tests reports to nobody else.
        if package == "testing":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield package, node


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(each).rpartition(".")[2] for each in node.bases}


def _described(package: str, node: ast.ClassDef) -> ErrorName:
    values = {
        ast.unparse(target): statement.value
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    }
    meaning = (ast.get_docstring(node) or "").partition("\n\n")[0]
    retry = values.get("retry")
    return ErrorName(
        package,
        node.name,
        " ".join(meaning.split()),
        _text(values.get("remedy")),
        isinstance(retry, ast.Constant) and retry.value is True,
    )


def _text(value: ast.expr | None) -> str:
    """A remedy; what only the running program knows is shown as `…`."""
    if value is None:
        return ""
    if isinstance(value, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in value.values
        )
    return str(ast.literal_eval(value))


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for package, errors in groupby(error_names(), key=lambda each: each.package):
        rows = "\n".join(
            f"| `{each.name}` | {_cell(each.meaning)} | {_cell(each.remedy)} | "
            f"{'yes' if each.tries_again else ''} |"
            for each in errors
        )
        head = "| error | meaning | remedy | tries again |\n|---|---|---|---|"
        parts.append(f"## {package}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def main() -> None:
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
