"""A session's state, which its parts share: connections, statements, portals, the pinned cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headrace.sql_server.backend import Backend
from headrace.sql_server.lake_run import Runner, SharedLake
from headrace.sql_server.link import Link
from headrace.sql_server.plans import Portal, Statement


@dataclass(slots=True)
class SessionState:
    """A session. `status` is that of the last ReadyForQuery: I, T or E."""

    client: Link
    backend: Backend
    lake: SharedLake
    runner: Runner
    # Cancels what the private PostgreSQL does for this session.
    cancel_backend: Callable[[], Awaitable[None]]
    statements: dict[bytes, Statement] = field(default_factory=dict)
    # Those of the front: the private PostgreSQL doesn't run them.
    portals: dict[bytes, Portal] = field(default_factory=dict)
    status: str = "I"

    async def transaction_ended(self, *, committed: bool = False) -> None:
        """The next statement may see a later cut."""
        for name, portal in list(self.portals.items()):
            portal.held = portal.held or (committed and portal.holds)
            if not portal.held or (portal.fresh and not committed):
                del self.portals[name]
        await self.runner.unpin()

    def statement_failed(self) -> None:
        """An error outside a block undoes what came before it in the same exchange."""
        for name, portal in list(self.portals.items()):
            if portal.fresh:
                del self.portals[name]
