"""docs/metrics.md is what its generator makes, and what services count is what is declared."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from headrace.metrics.catalogue import FIGURES
from headrace.metrics.reference_page import page

ROOT = Path(__file__).parents[3]
# In `Stats` too, and no figures: texts, or what telemetry alone reads.
NO_FIGURES: frozenset[str] = frozenset()


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
        and isinstance(node.func, ast.Name)
        and node.func.id in {"count", "count_in", "observe"}
    ):
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            yield str(node.args[1].value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if (
                isinstance(target, ast.Subscript)
                and isinstance(target.slice, ast.Constant)
                and ast.unparse(target.value) in {"stats", "self._stats"}
            ):
                yield str(target.slice.value)


def test_whatever_is_counted_is_declared() -> None:
    declared = {figure.key for figure in FIGURES} | NO_FIGURES
    assert [(str(module), key) for module, key in counted() if key not in declared] == []
