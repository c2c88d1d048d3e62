"""A session's state, which its parts share: connections, statements, portals, the pinned cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headrace.sql_server.backend import Backend
from headrace.sql_server.lake_run import Runner, SharedLake
from headrace.sql_server.link import Link
from headrace.sql_server.plans import LookUp, Portal, Statement


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
    # How many commands could have changed what a name means, and how many transactions have ended.
    commands: int = 0
    transactions: int = 0
    _commands_before: int = 0

    def look_up(self) -> LookUp:
        """For names that are looked up now."""
        return LookUp(
            self.commands,
            self.lake.definitions,
            self.transactions,
            self.backend.standard_strings,
            self.backend.encoding,
        )

    def command_ran(self) -> None:
        """A command of the client may have changed settings, such as `search_path`."""
        self.commands += 1

    async def transaction_ended(self, *, committed: bool = False) -> None:
        """The next statement may see a later cut."""
        self.transactions += 1
        if self.commands != self._commands_before:
            # SET LOCAL ends with the transaction, and a rollback takes any setting back.
            self.commands += 1
            self._commands_before = self.commands
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
