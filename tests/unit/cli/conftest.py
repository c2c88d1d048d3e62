"""Fixtures of the tests that revert rows."""

from __future__ import annotations

import pytest

from tests.support.reverted_rows import Trail, describe_tables


@pytest.fixture
def described_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    describe_tables(monkeypatch)


@pytest.fixture
def trail(described_tables: None, monkeypatch: pytest.MonkeyPatch) -> Trail:
    return Trail(monkeypatch)
