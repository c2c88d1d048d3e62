"""All options together: the same script through combinations in which every pair of values occurs.

A third of the combinations in each run, another each day; HEADRACE_OPTIONS chooses: `all` (`./taskw
test:options`), or numbers such as `3,7`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.testing.servers import SessionServers
from tests.options import script
from tests.options.covering import OPTIONS, combinations, pairs_of, wanted
from tests.options.judge import judge
from tests.options.world import running

_PARTS = 3


def chosen() -> list[int]:
    """The combinations of this run."""
    numbers = range(len(combinations()))
    asked = os.environ.get("HEADRACE_OPTIONS", "")
    if asked == "all":
        return list(numbers)
    if asked:
        return [int(number) for number in asked.split(",")]
    today = int(time.time() // 86_400)
    return [number for number in numbers if number % _PARTS == today % _PARTS]


def described(number: int) -> str:
    """A combination by what is not the default."""
    combination: Mapping[str, str] = combinations()[number]
    return f"{number}-" + "-".join(
        value for option, value in combination.items() if value != OPTIONS[option][0]
    )


def test_every_pair_of_values_that_may_go_together_is_in_some_combination() -> None:
    assert set().union(*(pairs_of(combination) for combination in combinations())) >= wanted()
    assert len(OPTIONS) >= 14


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", chosen(), ids=described)
async def test_what_arrives_is_what_was_committed_with_these_options(
    number: int, session_servers: SessionServers, tmp_path: Path
) -> None:
    async with running(combinations()[number], session_servers, tmp_path) as world:
        await script.Script(await world.source.connect()).run()
        await judge(world)
