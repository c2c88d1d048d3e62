"""A mirror's choice of tables, and the name under which it reads the stream. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.mirror.rules import NO_RULES, CopyRules

# Whether a mirror wants the table of this schema and name.
Takes = Callable[[str, str], bool]


def takes_all(_schema: str, _name: str) -> bool:
    """The choice of a mirror that contains every table."""
    return True


@dataclass(frozen=True, slots=True)
class MirrorScope:
    """`takes` chooses among the tables that the source publishes, later ones included; `durable`
    names the mirror's consumer on the server, by default after the target's identity. `rules` say
    the differences of its tables from the source's.
    """

    takes: Takes = takes_all
    durable: str = ""
    rules: CopyRules = NO_RULES


EVERYTHING = MirrorScope()
