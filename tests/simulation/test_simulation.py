"""Thousands of histories of the real services, in which everything can fail.

`HEADRACE_SIMULATION_HISTORIES` and `HEADRACE_SIMULATION_SEED` set their number and the first seed.
A failure prints its seed, and the smallest part of its history that still fails.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.defects import DEFECTS, Defect
from tests.simulation.plan import CLASSES, Plan, drawn, shrunk
from tests.simulation.world import history

HISTORIES = int(os.environ.get("HEADRACE_SIMULATION_HISTORIES", "5000"))
FIRST_SEED = int(os.environ.get("HEADRACE_SIMULATION_SEED", "0"))
SPOILED_HISTORIES_MAX = 2000
# Of each class, so that the workers share the work evenly.
SHARES = 2


def violation(plan: Plan) -> str | None:
    try:
        history(plan)
    except AssertionError as broken:
        return f"{type(broken).__name__}: {broken}"
    return None


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("kind", CLASSES)
def test_nothing_is_lost_doubled_reordered_or_confirmed_early_and_gaps_are_reported(
    kind: str, share: int
) -> None:
    count = max(1, HISTORIES // (len(CLASSES) * SHARES))
    first = FIRST_SEED + share * count
    print(f"{count} histories of {kind} from seed {first}")
    for seed in range(first, first + count):
        found = violation(drawn(seed, (kind,)))
        if found is not None:
            least = shrunk(drawn(seed, (kind,)), lambda plan: violation(plan) is not None)
            pytest.fail(f"{found}\nshrunk: {violation(least)}\n{least}")


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found_when_its_mend_is_taken_out(
    monkeypatch: pytest.MonkeyPatch, defect: Defect
) -> None:
    defect.spoil(monkeypatch)
    for seed in range(SPOILED_HISTORIES_MAX):
        if violation(drawn(seed, (defect.kind,))) is not None:
            print(f"found after {seed + 1} histories")
            return
    pytest.fail(f"{SPOILED_HISTORIES_MAX} histories, and no violation")


def test_a_seed_gives_the_same_history_each_time() -> None:
    for kind in CLASSES:
        plan = drawn(FIRST_SEED + 3, (kind,))
        worlds = [history(plan) for _ in range(2)]
        first, second = ((w.loop.turns, w.loop.now, w.told("a")) for w in worlds)
        assert first == second
