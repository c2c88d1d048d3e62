"""Schema events as changes of an index's fields and documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.sinks.opensearch_mapping import Properties, properties_of
from headrace.sinks.opensearch_names import EXACT, UNKNOWN, field_name
from headrace.sinks.port import SinkError

# Changes that leave the documents as they are.
_HARMLESS = frozenset(
    {
        "column_constraints_changed",
        "publication_changed",
        "replica_identity_changed",
        "table_first_seen",
        "table_removed",
    }
)
Source = dict[str, Any]
Step = Callable[[Source], None]


@dataclass(slots=True)
class SchemaPlan:
    """The consequences of a schema event for an index."""

    properties: Properties
    # Steps for each document; with any of them, the index is built again.
    steps: list[Step] = field(default_factory=list)
    # The table is gone, with its rows.
    empties: bool = False

    def change(self, source: Source) -> None:
        """Change one document."""
        for step in self.steps:
            step(source)


def planned(payload: Mapping[str, Any], known: Properties, where: str, remedy: str) -> SchemaPlan:
    """The plan for a schema event; `known` are the index's fields."""
    if payload.get("resync"):
        raise SinkError(
            f"{where} has changed in a way that its events do not describe", remedy=remedy
        )
    plan = SchemaPlan(properties_of(payload.get("columns") or ()))
    for change in payload.get("changes") or ():
        match change["change"]:
            case "column_added":
                if change.get("filled") is not None:
                    plan.steps.append(_filled(change))
            case "column_dropped":
                plan.steps.append(_dropped(field_name(change["column"])))
            case "column_renamed":
                plan.steps.append(
                    _renamed(field_name(change["from"]), field_name(change["column"]))
                )
            case "column_retyped":
                name = field_name(change["column"])
                if name in known and known[name] != plan.properties.get(name):
                    plan.steps.append(_kept)
            case "table_dropped":
                plan.empties = True
            # Another key would give every document another ID.
            case kind if kind not in _HARMLESS:
                raise SinkError(f"The sink can't apply {kind} of {where}", remedy=remedy)
    return plan


def _kept(_: Source) -> None:
    """The document is the same; only its index is another."""


def _filled(change: Mapping[str, Any]) -> Step:
    name, value = field_name(change["column"]), change["filled"]

    def step(source: Source) -> None:
        source.setdefault(name, value)

    return step


def _dropped(name: str) -> Step:
    def step(source: Source) -> None:
        source.pop(name, None)
        if name in (texts := source.get(EXACT) or {}):
            del texts[name]
        if name in (unknown := source.get(UNKNOWN) or []):
            unknown.remove(name)

    return step


def _renamed(before: str, after: str) -> Step:
    def step(source: Source) -> None:
        if before in source:
            source[after] = source.pop(before)
        if before in (texts := source.get(EXACT) or {}):
            texts[after] = texts.pop(before)
        if before in (unknown := source.get(UNKNOWN) or []):
            unknown[unknown.index(before)] = after

    return step
