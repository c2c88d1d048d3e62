"""The order in which several workers take the files: long ones first, so that no worker is left at the
end with a long file while the others have nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

import pytest

# Seconds of a typical test of its kind; only their ratios matter.
SPARK_S = 15.0
SLOW_S = 10.0
QUICK_S = 0.3


def long_files_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items, file by file: those that start a JVM alternate with those that mostly wait."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    longest = sorted(files.values(), key=seconds, reverse=True)
    spark = [tests for tests in longest if any(map(starts_jvm, tests))]
    others = [tests for tests in longest if not any(map(starts_jvm, tests))]
    nothing: list[pytest.Item] = []
    pairs = zip_longest(spark, others, fillvalue=nothing)
    return [item for first, second in pairs for item in (*first, *second)]


def seconds(tests: Iterable[pytest.Item]) -> float:
    """A guess at how long the tests take."""
    return sum(map(_seconds, tests))


def starts_jvm(test: pytest.Item) -> bool:
    return test.get_closest_marker("spark") is not None


def _seconds(test: pytest.Item) -> float:
    if starts_jvm(test):
        return SPARK_S
    return SLOW_S if test.get_closest_marker("slow") else QUICK_S
