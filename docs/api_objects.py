"""Which parts of the code the pages of the Python API show.

Loaded by griffe (mkdocs.yml names it), which reads the source code for these pages and imports none
of it. A comment above a field or constant is its description. The pages leave out private
parameters of dataclasses, and methods whose docstring starts with `Internal:`.
"""

from __future__ import annotations

import ast
from typing import Any

import griffe

INTERNAL = "Internal:"


class PublicObjects(griffe.Extension):
    """Adds descriptions from comments, and hides what is private."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Describe an attribute by the comment above it."""
        text = comment_above(attr.lines_collection[attr.filepath], attr.lineno or 0)
        if attr.docstring is None and text:
            attr.docstring = griffe.Docstring(text, parent=attr)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Hide an internal method."""
        if func.docstring is not None and func.docstring.value.startswith(INTERNAL):
            func.public = False

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Before griffe derives the parameters of dataclasses from their fields."""
        simplify(pkg)


def comment_above(lines: list[str], number: int) -> str:
    """The comment that ends in the line above this one."""
    found: list[str] = []
    while number > 1 and lines[number - 2].lstrip().startswith("# "):
        number -= 1
        found.insert(0, lines[number - 1].strip().removeprefix("# "))
    return " ".join(found)


def simplify(owner: griffe.Module | griffe.Class) -> None:
    """Forget private fields, write constants as their values, and add remedies to errors."""
    for name, member in list(owner.members.items()):
        if isinstance(member, griffe.Module | griffe.Class):
            simplify(member)
        elif isinstance(member, griffe.Function):
            for parameter in member.parameters:
                parameter.default = value_of(parameter.default, member.module)
        elif isinstance(member, griffe.Attribute) and isinstance(owner, griffe.Class):
            if name.startswith("_"):
                del owner.members[name]
            elif name == "remedy" and owner.docstring is not None:
                owner.docstring.value += remedy(str(member.value))
            member.value = value_of(member.value, member.module)


def remedy(source: str) -> str:
    """The remedy of an error, if its source code is a constant text."""
    node = ast.parse(source, mode="eval").body
    return f"\n\n*Remedy:* {node.value}" if isinstance(node, ast.Constant) else ""


def value_of(default: str | griffe.Expr | None, module: griffe.Module) -> str | griffe.Expr | None:
    """The value of a module's constant that a default names, or else the default."""
    named = module.members.get(str(default))
    if named is None or not named.is_attribute:
        return default
    constant = named.final_target if isinstance(named, griffe.Alias) else named
    return constant.value if isinstance(constant, griffe.Attribute) else default
