"""docs/metrics.md is current, and services count only declared metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from headrace.metrics.catalogue import FIGURES
from headrace.metrics.reference_page import page

ROOT = Path(__file__).parents[3]


def test_the_page_of_metrics_is_up_to_date() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page(), "run ./taskw docs:metrics"


def test_every_figure_has_a_key_of_its_own() -> None:
    keys = [figure.key for figure in FIGURES]
    assert len(set(keys)) == len(keys)


def counted() -> Iterator[tuple[Path, str]]:
    """Every key that the code writes into a service's figures."""
    for module in [*(ROOT / "libs").rglob("*.py"), *(ROOT / "services").rglob("*.py")]:
        for node in ast.walk(ast.parse(module.read_text())):
            yield from ((module, key) for key in _keys(node))


def _keys(node: ast.AST) -> Iterator[str]:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"count", "count_in", "observe", "set", "set_series", "unset"}
        and ast.unparse(node.func.value).rpartition(".")[2] in {"stats", "_stats"}
        and isinstance(node.args[0], ast.Constant)
    ):
        yield str(node.args[0].value)


def test_whatever_is_counted_is_declared() -> None:
    declared = {figure.key for figure in FIGURES}
    found = list(counted())
    assert len(found) > 100
    assert [(str(module), key) for module, key in found if key not in declared] == []
