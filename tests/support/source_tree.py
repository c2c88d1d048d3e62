"""The source code as the tests of its rules see it: modules, their syntax trees, what they import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOTS = ("libs", "services", "tests")


def modules(*places: str) -> list[Path]:
    """Every module under the places, by its path from the root."""
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [path.relative_to(ROOT) for path in found]


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(), str(module))


def imports(module: Path) -> set[str]:
    """The full names that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def failures(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(found)
