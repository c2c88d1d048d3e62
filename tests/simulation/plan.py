"""The plan of a history: options, and steps with their times; drawn from a seed, or written down.

A plan is data, so that a failing one can be shrunk: steps are removed as long as it still fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

# The subjects of histories; each has different faults.
CLASSES = (
    "calm",
    "crash",
    "network",
    "zombie",
    "slot",
    "store",
    "fork",
    "sources",
    "ddl",
    "archive",
)
# Few faults of one sort, for defects that need just these.
FOCUSED = ("archive_store", "archive_slot", "archive_stop")
_LENGTH_S = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens at a time."""

    at: float
    what: str
    # The object of the step, or its amount.
    to: str = ""
    much: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:6.3f} {self.what} {self.to} {self.much:g}"


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        lines = "\n".join(f"  {step}" for step in self.steps)
        return f"seed {self.seed} ({self.kind}) {options}\n{lines}"


def drawn(seed: int, kinds: tuple[str, ...] = CLASSES) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    kind = chance.choice(kinds)
    options = _options(chance, kind)
    steps = [*_work(chance, kind), *_faults(chance, kind, options)]
    return Plan(seed, kind, options, tuple(sorted(steps, key=lambda step: step.at)))


def _options(chance: random.Random, kind: str) -> dict[str, Any]:
    sources = 2 if kind == "sources" or chance.random() < 0.1 else 1
    return {
        "mode": chance.choice(("event", "event", "event", "batch", "transaction")),
        "ingest": chance.choice(("chain", "fast")),
        "encoding": chance.choice(("json", "msgpack")),
        "sources": sources,
        "prefix": chance.choice(("", "app")) if kind != "sources" else "app",
        "progress_s": chance.choice((0.05, 0.3, 3.0)),
        "window": chance.choice((2, 8, 64)),
        "group": chance.choice((3, 10, 100)),
        "atomic": chance.choice((3, 10, 100)),
        "age_s": chance.choice((0.005, 0.1, 0.5)),
        "dedupe_s": chance.choice((0.1, 5.0, 120.0)),
        "catalog_s": chance.choice((0.3, 1.5)),
        "frame": chance.choice((1024, 65536)),
        **(_archive(chance) if kind.startswith("archive") else {}),
    }


def _archive(chance: random.Random) -> dict[str, Any]:
    return {
        "archive": "sim://archive",
        "archive_required": chance.choice(("true", "true", "false")),
        "patience_s": chance.choice((0.2, 2.0)),
        "rows": chance.choice((1, 3, 10, 100)),
        "file_age_s": chance.choice((0.02, 0.2, 1.0)),
        "put_timeout_s": chance.choice((0.1, 0.5)),
    }


def _work(chance: random.Random, kind: str) -> Iterator[Step]:
    for _ in range(chance.choice((5, 10, 20, 40))):
        at = chance.random() * _LENGTH_S
        what = chance.choice(("commit", "commit", "commit", "emit", "idle"))
        yield Step(at, what, much=chance.choice((1, 1, 2, 3, 12)))
    if kind in ("ddl", "archive", *FOCUSED) or chance.random() < 0.1:
        for _ in range(chance.choice((1, 2, 3))):
            at = chance.random() * _LENGTH_S
            yield Step(at, chance.choice(("add", "add_filled", "rename", "rewrite", "rewrite")))


_Faults = Callable[[random.Random], Iterator[Step]]


def _faults(chance: random.Random, kind: str, options: dict[str, Any]) -> Iterator[Step]:
    for _ in range(chance.choice((1, 1, 2, 3, 6)) if kind != "calm" else 0):
        at = chance.random() * _LENGTH_S
        name = chance.choice(_OF_KIND[kind])
        source = "b" if options["sources"] > 1 and chance.random() < 0.5 else "a"
        fault = Step(at, name, source, chance.random())
        yield fault
        if name in _BLIND:
            yield from _changes_meanwhile(chance, fault)


def _changes_meanwhile(chance: random.Random, fault: Step) -> Iterator[Step]:
    """A known table changes, and is written to, while the catalog doesn't answer."""
    yield Step(fault.at - 0.1 - 0.2 * chance.random(), "commit_all")
    times = sorted(fault.at + chance.random() * fault.much / 2 for _ in range(2))
    yield Step(times[0], "rename")
    yield Step(times[1], "commit", much=12)


# Faults during which the catalog doesn't answer.
_BLIND = ("stop_archiver_blind", "stop_publisher_blind")

_OF_KIND: dict[str, tuple[str, ...]] = {
    "crash": (
        *("kill_publisher", "kill_publisher", "kill_publisher", "kill_publisher"),
        *("kill_reader", "kill_reader", "stop_publisher", "stop_reader"),
    ),
    "network": ("cut_publisher", "cut_reader", "lose", "restart_nats", "hiccups", "cut_postgres"),
    "zombie": ("sleep_publisher", "sleep_publisher", "kill_publisher", "sleep_reader"),
    "slot": ("restart_postgres", "move_slot", "drop_slot", "kill_reader", "kill_publisher"),
    "store": (
        *("lose_stream", "lose_state", "lose_both", "wipe_stream", "lose_everything"),
        "kill_publisher",
    ),
    "fork": ("promote", "promote", "promote_abrupt", "kill_publisher", "restart_postgres"),
    "sources": ("kill_publisher", "restart_nats", "hiccups", "cut_publisher", "lose"),
    "ddl": (
        *("kill_publisher", "kill_publisher", "restart_nats", "restart_nats", "lose_stream"),
        *("lose_stream", "cut_postgres", "cut_postgres", "stop_publisher", "stop_publisher_blind"),
    ),
    "archive": (
        *("kill_archiver", "kill_archiver", "sleep_archiver", "stop_archiver", "cut_archiver"),
        *("trouble_objects", "trouble_objects", "stop_archiver_blind", "kill_publisher"),
        *("kill_reader", "restart_nats", "restart_postgres", "move_slot", "lose_state"),
    ),
}


_OF_KIND |= {
    "archive_store": ("trouble_objects", "kill_archiver"),
    "archive_slot": ("move_slot",),
    "archive_stop": ("stop_archiver_blind",),
}


def shrunk(plan: Plan, fails: Callable[[Plan], bool], tries: int = 400) -> Plan:
    """The smallest plan found that still fails: without steps, with rounder times, calmer options."""
    left = tries
    changed = True
    while changed and left > 0:
        changed = False
        for smaller in _smaller(plan):
            left -= 1
            if fails(smaller):
                plan, changed = smaller, True
                break
            if left <= 0:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    steps = plan.steps
    size = len(steps) // 2
    while size:
        for at in range(0, len(steps), size):
            yield replace(plan, steps=steps[:at] + steps[at + size :])
        size //= 2
    for name, calm in _CALM.items():
        if plan.options.get(name) != calm:
            yield replace(plan, options={**plan.options, name: calm})
    for at, step in enumerate(steps):
        if step.what == "commit" and step.much > 1:
            yield replace(plan, steps=(*steps[:at], replace(step, much=1), *steps[at + 1 :]))


_CALM = {
    "sources": 1,
    "mode": "event",
    "ingest": "chain",
    "encoding": "json",
    "prefix": "",
    "dedupe_s": 0.1,
    "frame": 65536,
    "window": 64,
}
