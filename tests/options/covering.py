"""The options that are tested together, and combinations in which every pair of their values
occurs. Pure.

Promises: each pair of values that may go together is in some combination; the same combinations on
every machine.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

Combination = Mapping[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]

# The first value is the default's.
OPTIONS: dict[str, tuple[str, ...]] = {
    "delivery": ("event", "transaction", "batch"),
    "archive": ("none", "optional", "required"),
    "postgres": ("18", "16"),
    "encoding": ("msgpack", "json"),
    "ingest": ("auto", "chain"),
    "msg_id": ("nats", "headrace"),
    "zstd_events": ("off", "on"),
    "zstd_snapshots": ("off", "on"),
    "arrays": ("literal", "list"),
    "json_values": ("native", "text"),
    "int8": ("number", "string"),
    "compat": ("none", "bridge"),
    "exclude": ("none", "some"),
    "poison": ("stop", "park"),
    "state_bucket": ("default", "other"),
    "retention": ("relaxed", "strict"),
    "sources": ("one", "two"),
    "ddl_trigger": ("off", "on"),
    "duplicate_window": ("shortest", "jetstream"),
    "progress": ("default", "often"),
    "catalog": ("default", "often"),
}


def allowed(combination: Combination) -> bool:
    """Whether the suite takes these together; a part of a combination is enough."""
    bridge = combination.get("compat") == "bridge"
    if bridge and combination.get("delivery", "event") != "event":
        return False
    if bridge and combination.get("msg_id") == "headrace":
        return False
    # The bridge's snapshots are text anyway, and nothing but a stream's reader can follow either.
    return not (bridge and combination.get("json_values") == "text")


def pairs_of(combination: Combination) -> set[Pair]:
    """Every pair of values in it."""
    return set(itertools.combinations(sorted(combination.items()), 2))


def wanted() -> set[Pair]:
    """Every pair that may go together."""
    found: set[Pair] = set()
    for (one, values), (other, others) in itertools.combinations(sorted(OPTIONS.items()), 2):
        pairs = (((one, value), (other, with_it)) for value in values for with_it in others)
        found |= {pair for pair in pairs if allowed(dict(pair))}
    return found


def followed(combination: Combination) -> bool:
    """Whether mirrors can read such a stream: the bridge's has no positions, and texts are not
    documents.
    """
    return combination["compat"] == "none" and combination["json_values"] == "native"


@cache
def combinations() -> list[Combination]:
    """Few combinations that have all pairs: first those that mirrors can follow, then what pairs
    are left.
    """
    missing = wanted()
    can_follow = {**OPTIONS, "compat": ("none",), "json_values": ("native",)}
    possible = {
        pair for pair in missing if all(value in can_follow[option] for option, value in pair)
    }
    made = _covering(possible, can_follow)
    missing -= {pair for combination in made for pair in pairs_of(combination)}
    return made + _covering(missing, OPTIONS)


def _covering(missing: set[Pair], options: Mapping[str, Sequence[str]]) -> list[Combination]:
    made: list[Combination] = []
    missing = set(missing)
    while missing:
        used = Counter(item for combination in made for item in combination.items())
        # Starts with a pair that is missing; the best of many starts.
        begun = (_grown(dict(pair), missing, options, used) for pair in sorted(missing)[:40])
        best = max(begun, key=lambda grown: len(pairs_of(grown) & missing))
        made.append({option: best[option] for option in OPTIONS})
        missing -= pairs_of(best)
    return made


def _grown(
    made: dict[str, str],
    missing: set[Pair],
    options: Mapping[str, Sequence[str]],
    used: Counter[tuple[str, str]],
) -> dict[str, str]:
    """Each further option with the value that covers most of what is missing, or else was used
    least.
    """
    wants = Counter(option for pair in missing for option, _ in pair)
    for option in sorted(options, key=lambda name: (-wants[name], name)):
        if option in made:
            continue
        fitting = [value for value in options[option] if allowed({**made, option: value})]
        gains = {value: len(pairs_of({**made, option: value}) & missing) for value in fitting}
        made[option] = max(fitting, key=lambda value: (gains[value], -used[option, value]))
    return made
