"""A session's connection to the private PostgreSQL.

The analyzer's trees come as LOG messages, which clients never see. It keeps the last statement's
trees, counts what changes the session, and filters notices by the level that the client asked for.
A tree that reads a table of the lake with ONLY, which would give no rows, is noticed in whichever
statement it comes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from headrace.sql import wire
from headrace.sql.wire import Notice, WireMessage
from headrace.sql_server.link import Link
from headrace.sql_server.problems import FailedError, SessionEndError, fatal

ANALYZER_OPTIONS: Final = (
    "-c debug_print_rewritten=on -c debug_pretty_print=off -c client_min_messages=log"
)
_RENEW: Final = (
    b"SET debug_print_rewritten=on",
    b"SET debug_pretty_print=off",
    b"SET client_min_messages=log",
)
# Every use of a relation has its own entry; spaces in names are escaped, so nothing else looks
# like one.
_USES: Final = re.compile(rb"RTEPERMISSIONINFO\s+:relid\s+(\d+)\s+:inh\s+(true|false)")
_TREE: Final = re.compile(rb"\s*\(")
_LEVELS: Final = ("debug5", "debug4", "debug3", "debug2", "debug1", "log", "notice", "warning")
# Messages about which nothing has to be decided here.
_ASYNCHRONOUS: Final = (b"N", b"S", b"A")
# Encodings in which a byte of a longer character may look like a quote.
_UNSAFE_ENCODINGS: Final = frozenset(
    {b"SJIS", b"SHIFT_JIS_2004", b"BIG5", b"GBK", b"UHC", b"JOHAB", b"GB18030"}
)


def uses(tree: bytes) -> Iterable[tuple[int, bool]]:
    """The relations that a tree reads, and whether with their descendants."""
    return ((int(relid), inherited == b"true") for relid, inherited in _USES.findall(tree))


class Backend:
    """One connection. Messages that the client gets are written to it by `passed`."""

    def __init__(
        self,
        link: Link,
        client: Link,
        lake_relids: Callable[[], Collection[int]],
        exact_relids: Collection[int],
        level: str = "notice",
    ) -> None:
        self._link = link
        self._client = client
        self._lake_relids = lake_relids
        self._exact_relids = exact_relids
        self._exact = False
        # The level of notices that the client asked for.
        self.level = level
        # The trees since `forget_trees`.
        self.trees: list[bytes] = []
        # Whether one of them reads a table of the lake with ONLY. A statement that is only
        # analyzed can be refused; if it runs already, a function reads the table.
        self.reads_parent = False
        self._analyzing = False
        self.settings: dict[bytes, bytes] = {}
        self.process = 0

    def forget_trees(self) -> None:
        """What follows is another statement."""
        self.trees.clear()
        self.reads_parent = False

    @contextlib.contextmanager
    def analysis(self) -> Iterator[None]:
        """A statement is analyzed and does not run: what it reads with ONLY can be refused."""
        self._analyzing = True
        try:
            yield
        except BaseException:
            self.forget_trees()
            raise
        finally:
            self._analyzing = False

    @contextlib.contextmanager
    def exact(self) -> Iterator[None]:
        """A statement of the front's own reads the tables that have rows."""
        self._exact = True
        try:
            yield
        finally:
            self._exact = False

    def reads_exact(self) -> bool:
        """Whether one of the trees reads a table that has rows."""
        return any(relid in self._exact_relids for tree in self.trees for relid, _ in uses(tree))

    @property
    def standard_strings(self) -> bool:
        """Whether a backslash in a plain literal is an ordinary character."""
        return self.settings.get(b"standard_conforming_strings") != b"off"

    @property
    def encoding(self) -> bytes:
        """The client's encoding."""
        return self.settings.get(b"client_encoding", b"UTF8")

    async def send(self, *messages: bytes) -> None:
        """Send messages on."""
        await self._link.send(b"".join(messages))

    async def raw_message(self) -> WireMessage:
        """The next message of any type: at login."""
        return await self._link.receive()

    async def next(self) -> WireMessage:
        """The next message that answers something; others are dealt with."""
        while True:
            message = await self._link.receive()
            if message.kind not in _ASYNCHRONOUS:
                if self.reads_parent and not self._analyzing:
                    # The statement runs already, and may have sent rows: only the session's end
                    # stops it.
                    raise fatal("0A000", "a function reads a table of the SQL server, or with ONLY")
                return message
            await self.deal(message)

    async def idle(self) -> None:
        """Deal with messages that answer nothing, such as notifications, until cancelled."""
        while True:
            # It takes nothing from the connection: when the task is cancelled, no message is lost.
            await self._link.arrival()
            message = self._link.waiting()
            assert message is not None, "it has arrived"
            if message.kind == b"E":
                # PostgreSQL ends the connection: a time-out, a shutdown, an administrator.
                await self._client.send(message.encode())
                raise SessionEndError("the private PostgreSQL ended the connection")
            await self.deal(message)

    async def deal(self, message: WireMessage) -> None:
        """A notice, a setting's new value, or a notification."""
        if message.kind == b"N":
            self._notice(wire.notice_of(message.body), message)
            return
        if message.kind == b"S":
            self.note_setting(message)
        self._client.write(message.encode())

    def note_setting(self, message: WireMessage) -> None:
        """Keep a setting's value. Some end the session."""
        name, value = wire.parameter_status_of(message.body)
        # PostgreSQL reports the settings that change how bytes are read, and changes of them.
        self.settings[name] = value
        # A superuser could read the guard's tables and change what the front relies on.
        if name == b"is_superuser" and value == b"on":
            raise fatal("28000", "superusers can't use the SQL server", hint=_SUPERUSER_HINT)
        if name == b"client_encoding" and value in _UNSAFE_ENCODINGS:
            raise fatal("0A000", f"client_encoding {value.decode()} is not supported")

    async def until(self, kinds: bytes, also: bytes = b"") -> tuple[WireMessage, list[WireMessage]]:
        """Read to a message of some kinds or an error; returns it, and those `also` of interest."""
        found: list[WireMessage] = []
        while True:
            message = await self.next()
            # An error ends the exchange, no matter what was expected.
            if message.kind in kinds or message.kind == b"E":
                return message, found
            if message.kind in also:
                found.append(message)

    async def sync(self) -> WireMessage:
        """End the exchange; returns ReadyForQuery."""
        await self.send(wire.SYNC)
        message = await self.next()
        # The rest of an interrupted exchange comes first.
        while message.kind != b"Z":
            message = await self.next()
        return message

    async def fail(self) -> None:
        """Make the transaction fail, as after its own errors."""
        # No portal has this name, and a failed transaction refuses it, too.
        await self.send(wire.execute(b"headrace: a statement failed"), wire.FLUSH)
        message = await self.next()
        while message.kind != b"E":
            message = await self.next()

    async def renew_analyzer(self) -> None:
        """Turn the analyzer's messages on again after the client changed the settings."""
        rows = await self.call(b"SELECT pg_catalog.current_setting('client_min_messages')")
        found = (rows[0][0] or b"").decode()
        if found != "log":
            self.level = found
        # One by one: the client may have changed any of them, or all with RESET ALL.
        for setting in _RENEW:
            await self.call(setting)

    async def call(
        self,
        text: bytes,
        values: Sequence[bytes | None] = (),
        types: Sequence[int] = (),
        *,
        form: int = wire.TEXT,
        formats: Sequence[int] = (),
    ) -> list[tuple[bytes | None, ...]]:
        """Run a statement of the front's; returns its rows.

        It takes the name of no statement or portal of the client.
        """
        found = await self.answers(text, values, types, form=form, formats=formats)
        return [wire.values_of(message.body) for message in found if message.kind == b"D"]

    async def answers(
        self,
        text: bytes,
        values: Sequence[bytes | None] = (),
        types: Sequence[int] = (),
        *,
        form: int = wire.TEXT,
        formats: Sequence[int] = (),
    ) -> list[WireMessage]:
        """As `call`; returns all messages of the execution."""
        name = b"headrace: a call"
        # The call's own statement is analyzed, too; the trees of the client's statement come back
        # after it.
        kept = list(self.trees)
        await self.send(
            wire.close(b"S", name),
            wire.Parse(name, text, tuple(types)).encode(),
            wire.Bind(name, name, tuple(formats), tuple(values), (form,)).encode(),
            wire.execute(name),
            wire.close(b"P", name),
            wire.FLUSH,
        )
        found = []
        closed = 0
        # Its two Close messages: the last answer shows that nothing more comes.
        while closed < 2:
            message = await self.next()
            if message.kind == b"E":
                raise FailedError(message)
            found.append(message)
            closed += message.kind == b"3"
        self.trees = kept
        return found

    def _notice(self, notice: Notice, message: WireMessage) -> None:
        severity = notice.severity.decode("ascii", "replace").lower()
        if severity == "log" and _TREE.match(notice.detail):
            self._take(notice.detail)
        elif self._wanted(severity):
            self._client.write(message.encode())

    def _take(self, tree: bytes) -> None:
        self.trees.append(tree)
        lake = self._lake_relids()
        for relid, inherited in uses(tree):
            # Rights on a table that has rows were checked for one statement only.
            if (relid in lake and not inherited) or (
                relid in self._exact_relids and not self._exact
            ):
                self.reads_parent = True

    def _wanted(self, severity: str) -> bool:
        if severity == "info" or severity not in _LEVELS or self.level not in _LEVELS:
            # INFO is for every client; a client that asked for errors gets no other notices.
            return severity == "info" or self.level in _LEVELS
        return _LEVELS.index(severity) >= _LEVELS.index(self.level)

    async def close(self) -> None:
        """Say goodbye."""
        self._link.write(wire.TERMINATE)
        await self._link.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._link.abort()


_SUPERUSER_HINT = "Create a user with `headrace sql users add`."
