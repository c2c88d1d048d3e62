"""Decoders with almost valid bytes, for FUZZ_SECONDS in total (a few by default); the seed is
printed.

`FUZZ_SEED` repeats a run. hypothesis shrinks the failing bytes.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.mutation import mutants
from tests.fuzz.targets import TARGETS

SECONDS = float(os.environ.get("FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
ROUND_EXAMPLES = 200


@pytest.mark.timeout(max(300.0, 2 * SECONDS))
@pytest.mark.parametrize("name", TARGETS)
def test_bytes_that_are_nearly_right_are_understood_whole_or_refused(name: str) -> None:
    target = TARGETS[name]
    for valid in target.seeds:
        target.check(valid)
    deadline = time.monotonic() + SECONDS / len(TARGETS)
    round_ = 0
    while round_ == 0 or time.monotonic() < deadline:
        print(f"FUZZ_SEED={SEED} target={name} round={round_}")
        _round(name, SEED + round_)
        round_ += 1


def _round(name: str, number: int) -> None:
    target = TARGETS[name]

    @seed(number)
    @settings(
        max_examples=ROUND_EXAMPLES,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(mutants(target.seeds))
    def check(data: bytes) -> None:
        target.check(data)

    check()
