"""Fixtures of a user's first steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.testing.names import Names
from headrace.testing.servers import SessionServers
from headrace.testing.up import Up


@pytest.fixture
def empty_folder(session_servers: SessionServers, names: Names) -> Path:
    """A folder with a space in its name, which another user may enter, as PostgreSQL must under
    root.
    """
    folder = session_servers.folder / f"first minute {names.unique}"
    folder.mkdir(mode=0o711)
    return folder


@pytest.fixture
async def running(empty_folder: Path) -> AsyncIterator[Up]:
    """An `up` that has shown its table."""
    async with Up(empty_folder) as up:
        await up.says(r"Up after [\d.]+ s")
        yield up
