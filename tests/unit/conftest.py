"""Fixtures of several packages' unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.virtual_nats import VirtualNats


@pytest.fixture
def nats() -> Iterator[VirtualNats]:
    """A simulated server, in virtual time."""
    made = VirtualNats()
    yield made
    made.close()
