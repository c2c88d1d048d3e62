"""Each package states its content, its importers and its limits, and each public name is on a page."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT, imports, inside, modules, tree

PUBLIC = {
    f"headrace.{name}"
    for name in (
        "archive",
        "consumer",
        "context",
        "mirror",
        "pipeline",
        "sinks",
        "spark",
        "testing",
    )
}
PACKAGES = {
    ".".join(module.parent.parts[1:]): module
    for module in modules("libs", "services")
    if module.name == "__init__.py"
}
ANY = re.compile(r"Any (?:program|program's tests|package)\b")
SOME = re.compile(r"Only |No other package$")


def content_importers_limits(package: str) -> tuple[str, str, str]:
    """The paragraphs on the content; who may import it; and the rest of that paragraph."""
    *content, last = (ast.get_docstring(tree(PACKAGES[package])) or "").split("\n\n")
    stated, _, limits = " ".join(last.split()).partition(" may import it")
    return "\n\n".join(content), stated, limits


def owner(module: Path) -> str:
    return ".".join(module.parent.parts[1:]).removeprefix("headrace.")


@cache
def all_imports() -> list[tuple[str, str]]:
    """Each package, and each name that a module of it imports."""
    return [
        (owner(module), name) for module in modules("libs", "services") for name in imports(module)
    ]


def importers(package: str) -> set[str]:
    """The other packages that import this one, or a module that no package inside it owns."""
    inner = {name for name in PACKAGES if name.startswith(f"{package}.")}
    return {
        importer
        for importer, name in all_imports()
        if inside(name, package)
        and not any(inside(name, other) for other in inner)
        and not inside(f"headrace.{importer}", package)
    }


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_states_its_content_its_importers_and_what_it_never_does(package: str) -> None:
    content, stated, limits = content_importers_limits(package)
    assert content
    assert ANY.match(stated) or SOME.match(stated), "the last paragraph: who may import it"
    assert re.search(r"\bnever\b", limits), "after the importers: what it never does"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_only_the_importers_that_a_package_names_import_it(package: str) -> None:
    _, stated, _ = content_importers_limits(package)
    if ANY.match(stated):
        return
    named = set(re.findall(r"`([\w.]+)`", stated))
    others = [
        importer
        for importer in sorted(importers(package))
        if not any(inside(importer, name) for name in named)
    ]
    assert others == []


def test_the_public_packages_are_those_for_any_program() -> None:
    for_any = {
        package
        for package in PACKAGES
        if content_importers_limits(package)[1].startswith("Any program")
    }
    assert for_any == PUBLIC


def test_every_public_package_has_a_page() -> None:
    pages = {page.stem: page.read_text() for page in (ROOT / "docs/api").glob("*.md")}
    assert {f"headrace.{name}" for name in pages} == PUBLIC
    assert [name for name, text in pages.items() if f"\n::: headrace.{name}\n" not in text] == []
