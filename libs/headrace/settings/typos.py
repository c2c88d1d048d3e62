"""Slips of the pen in the environment: a variable that no setting has, but nearly. Pure.

Promises silence about anything that may be meant for others: Kubernetes names services of a cluster
in every environment, and images have variables of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import get_type_hints

from headrace.audit.settings import AuditSettings
from headrace.settings import Settings

_PREFIXES = ("HEADRACE_", "PG_", "POSTGRES_BRIDGE_", "NATS_", "DEST_DB_")
# What people write for settings that are called otherwise.
_OTHERWISE = {
    "PG_USER": "POSTGRES_BRIDGE_USER",
    "PG_PASSWORD": "POSTGRES_BRIDGE_PASSWORD",
    "PG_DATABASE": "PG_DB",
    "PG_DBNAME": "PG_DB",
    "NATS_USER": "NATS_BRIDGE_USER",
    "NATS_PASSWORD": "NATS_BRIDGE_PASSWORD",
    "HEADRACE_PORT": "HEADRACE_HTTP_PORT",
    "HEADRACE_PUBLICATION": "HEADRACE_PUB",
    "HEADRACE_JSON": "HEADRACE_ENCODING",
}
# Of compose.yaml, which gives its second suite what they say.
_MEANT = frozenset({"HEADRACE_SLOT_2", "HEADRACE_PUB_2"})
_LIKENESS = 0.85


def names() -> frozenset[str]:
    """Every variable that is a setting."""
    groups = [get_type_hints(Settings)[group.name] for group in fields(Settings)]
    declared = [field.metadata for group in (*groups, AuditSettings) for field in fields(group)]
    return frozenset(
        [one["env"] for one in declared]
        + [f"{one['env']}_FILE" for one in declared if one["secret"]],
    )


def slips(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that looks like a setting and is none."""
    known = names()
    strange = sorted(
        name for name in environ if name.startswith(_PREFIXES) and name not in known | _MEANT
    )
    found = (
        (name, _meant(name, known)) for name in strange if not environ[name].startswith("tcp://")
    )
    return [
        f"{name} is no setting: did you mean {meant}?"
        for name, meant in found
        if meant and meant not in environ
    ]


def _meant(name: str, known: frozenset[str]) -> str | None:
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    # Rarely needed, so that a service is not larger for it.
    from difflib import get_close_matches  # noqa: PLC0415

    return next(iter(get_close_matches(name, known, n=1, cutoff=_LIKENESS)), None)
