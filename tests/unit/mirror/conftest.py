"""Fixtures of the mirror's tests in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mirror_world import MirrorWorld, mirrored


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MirrorWorld]:
    """A source without tables, and a mirror that does not run yet."""
    made = MirrorWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def ab(tmp_path: Path) -> Iterator[MirrorWorld]:
    """A mirror of everything: two tables of four rows."""
    with mirrored(tmp_path, {"a": 4, "b": 4}) as made:
        yield made
