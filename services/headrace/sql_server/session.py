"""One client's session: its messages, one after another, until it leaves.

Every statement is analyzed by the private PostgreSQL before anything runs. Those with a plan run
here, on the transaction's cut; all others run there, and their messages pass as they are. An error
of a plan makes the private PostgreSQL's transaction fail, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from headrace.sql import wire
from headrace.sql.statements import CloseCursor, Piece, identifier, split, utility_of
from headrace.sql.wire import Notice, Parse, Problem, WireMessage
from headrace.sql_server.analysis import Analyzer
from headrace.sql_server.lake_reader import LakeReader
from headrace.sql_server.own_plans import forget_undone
from headrace.sql_server.plans import Portal, Statement
from headrace.sql_server.problems import (
    GUARD_CODE,
    GUARD_MESSAGE,
    NOT_SUPPORTED,
    FailedError,
    StatementRefusedError,
    fatal,
    refused,
    transaction_failed,
    unsupported,
)
from headrace.sql_server.state import SessionState

_EMPTY: Final = wire.frame(b"I")
_SOON_S: Final = 0.02
# Commands after which each name means the same. The end of a transaction takes settings back only
# if it changed any, and ROLLBACK TO may.
_SAME_NAMES: Final = frozenset({"BEGIN", "COMMIT", "END", "RELEASE", "SAVEPOINT", "SHOW", "START"})


class SqlSession:
    """A session after its login."""

    def __init__(self, state: SessionState, idle_timeout_s: float = 0.0) -> None:
        self._state = state
        self._idle_timeout_s = idle_timeout_s or None
        self._reader = LakeReader(state)
        self._analyzer = Analyzer(state, self._reader)
        self._skipping = False
        # The statements of portals that the private PostgreSQL runs.
        self._passed: dict[bytes, Statement] = {}
        self._handlers: Mapping[bytes, Callable[[bytes], Awaitable[None]]] = {
            b"P": self._parse,
            b"B": self._bind,
            b"D": self._describe,
            b"E": self._execute,
            b"C": self._close,
            b"H": self._flush,
            b"F": self._call,
        }

    async def run(self) -> None:
        """Serve the client until it leaves, or the session has to end."""
        while True:
            message = await self._received()
            if message.kind == b"X":
                return
            if message.kind == b"S":
                await self._sync()
            elif message.kind == b"Q":
                if not self._skipping:
                    await self._query(message.body)
            elif message.kind in self._handlers:
                if not self._skipping:
                    await self._guarded(self._handlers[message.kind](message.body))
            elif message.kind not in (b"d", b"c", b"f"):
                # Parts of a COPY that has failed are ignored, as PostgreSQL does.
                raise fatal("08P01", f"invalid frontend message type {message.kind[0]}")

    async def _received(self) -> WireMessage:
        """The client's next message; what the private PostgreSQL sends meanwhile is passed."""
        client = self._state.client
        # A client that sends ahead is answered without two tasks for each message.
        if (waiting := client.waiting()) is not None:
            return waiting
        # Nothing more to do: the client may be waiting for what is in the buffer.
        await client.flush()
        # Most clients answer soon, and then the two tasks are not needed either.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SOON_S):
                return await client.receive()
        arrival = asyncio.create_task(client.receive(), name="client-message")
        idle = asyncio.create_task(self._state.backend.idle(), name="backend-idle")
        try:
            done, _ = await asyncio.wait(
                {arrival, idle},
                timeout=self._idle_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for task in (arrival, idle):
                task.cancel()
            await asyncio.wait({arrival, idle})
        if not done:
            raise fatal("57P05", "terminating connection due to idle-session timeout")
        # PostgreSQL has ended the connection; the client's message would have no one to run it.
        if not idle.cancelled() and idle.exception() is not None:
            await idle
        return await arrival

    # The simple protocol

    async def _query(self, body: bytes) -> None:
        state = self._state
        text = wire.query_of(body)
        pieces = split(text, standard_strings=state.backend.standard_strings)
        # A Query destroys the unnamed statement, as in PostgreSQL.
        state.statements.pop(b"", None)
        if not pieces:
            state.client.write(_EMPTY)
        try:
            # One after another, and none after an error: they are one implicit transaction.
            for piece in pieces:
                await self._piece(piece, text)
        except StatementRefusedError as error:
            self._report(error.problem.encode())
            await state.backend.fail()
        except FailedError as error:
            self._report(_explained(error.message).encode())
        await self._sync()

    async def _piece(self, piece: Piece, text: bytes) -> None:
        """One statement of a Query."""
        try:
            statement = await self._analyzer.prepare(Parse(b"", piece.text, ()), piece)
            # A table may have changed before the analysis took its lock.
            statement = await self._analyzer.current(b"", statement)
        except FailedError as error:
            raise FailedError(_moved(error.message, text, piece.start)) from None
        client = self._state.client
        if statement.plan is None:
            begin = (wire.Bind(b"", b"", (), (), ()).encode(), wire.describe(b"P", b""))
            # The client has sent a Query, whose answer has no BindComplete or NoData.
            await self._pass(statement, *begin, wire.execute(b""), hidden=b"2n")
            return
        if statement.columns is not None and statement.describes_rows:
            forms = (wire.TEXT,) * len(statement.columns)
            client.write(wire.row_description(statement.columns, forms))
        await statement.plan.execute(Portal(statement), 0)

    # The extended protocol

    async def _guarded(self, work: Awaitable[None]) -> None:
        """After an error, messages are skipped up to the next Sync."""
        try:
            await work
        except StatementRefusedError as error:
            self._skipping = True
            self._report(error.problem.encode())
            await self._state.backend.fail()
        except FailedError as error:
            self._skipping = True
            self._report(_explained(error.message).encode())

    def _report(self, error: bytes) -> None:
        """Send an error."""
        code = wire.notice_of(error[wire.HEADER_BYTES :]).code.decode("ascii", "replace")
        self._state.lake.stats.count_in("sql_errors", code)
        self._state.statement_failed()
        self._state.client.write(error)

    async def _sync(self) -> None:
        self._skipping = False
        for portal in self._state.portals.values():
            portal.fresh = False
        message = await self._state.backend.sync()
        self._state.status = message.body.decode("ascii")
        if self._state.status == "I":
            await self._state.transaction_ended()
        await self._state.client.send(message.encode())

    async def _flush(self, body: bytes) -> None:  # noqa: ARG002  # a message's handler
        await self._state.client.flush()

    async def _call(self, body: bytes) -> None:  # noqa: ARG002  # a message's handler
        raise unsupported("the function call protocol", "Use SELECT.")

    async def _parse(self, body: bytes) -> None:
        parse = wire.parse_of(body)
        # A failed Parse leaves no unnamed statement, while named ones stay.
        if not parse.name:
            self._state.statements.pop(b"", None)
        self._state.statements[parse.name] = await self._analyzer.prepare(parse)
        self._state.client.write(wire.PARSE_COMPLETE)

    async def _bind(self, body: bytes) -> None:
        state = self._state
        bind = wire.bind_of(body)
        statement = await self._current(bind.statement)
        if bind.portal in state.portals:
            # Only the unnamed portal is replaced silently.
            if bind.portal:
                name = bind.portal.decode("utf-8", "replace")
                raise refused("42P03", f'cursor "{name}" already exists')
            del state.portals[b""]
        if statement is None or statement.plan is None:
            await state.backend.send(wire.frame(b"B", body), wire.FLUSH)
            answer, _ = await state.backend.until(b"2")
            if answer.kind == b"E":
                raise FailedError(answer)
            # Its keyword is needed when it runs: COMMIT ends the cut, too.
            self._passed[bind.portal] = statement or Statement(None)
        else:
            if state.status == "E":
                raise transaction_failed()
            values = await self._reader.values(statement.parameters, bind.formats, bind.values)
            forms = wire.result_forms(bind.results, len(statement.columns or ()))
            state.portals[bind.portal] = Portal(statement, values, forms)
        state.client.write(wire.BIND_COMPLETE)

    async def _current(self, name: bytes) -> Statement | None:
        """A prepared statement as its names are understood now."""
        state = self._state
        statement = state.statements.get(name)
        # A failed transaction looks nothing up; the statement is refused when it is bound.
        if statement is None or state.status == "E":
            return statement
        found = await self._analyzer.current(name, statement)
        state.statements[name] = found
        return found

    async def _describe(self, body: bytes) -> None:
        target = wire.target_of(body)
        state = self._state
        if target.kind == b"P":
            portal = state.portals.get(target.name)
            if portal is not None:
                self._write_columns(portal.statement, portal.column_forms)
                return
        else:
            statement = await self._current(target.name)
            if statement is not None and statement.plan is not None:
                state.client.write(wire.parameter_description(statement.parameters))
                self._write_columns(statement, (wire.TEXT,) * len(statement.columns or ()))
                return
        await state.backend.send(wire.frame(b"D", body), wire.FLUSH)
        answer, found = await state.backend.until(b"Tn", b"t")
        if answer.kind == b"E":
            raise FailedError(answer)
        for message in (*found, answer):
            state.client.write(message.encode())

    def _write_columns(self, statement: Statement, forms: tuple[int, ...]) -> None:
        if statement.columns is None or not statement.describes_rows:
            self._state.client.write(wire.NO_DATA)
        else:
            self._state.client.write(wire.row_description(statement.columns, forms))

    async def _execute(self, body: bytes) -> None:
        state = self._state
        wanted = wire.execute_of(body)
        portal = state.portals.get(wanted.portal)
        if portal is None:
            statement = self._passed.get(wanted.portal, Statement(None))
            await self._pass(statement, wire.frame(b"E", body))
            return
        plan = portal.statement.plan
        assert plan is not None, "the front's portals have plans"
        if state.status == "E":
            raise transaction_failed()
        await plan.execute(portal, wanted.rows_max)

    async def _close(self, body: bytes) -> None:
        target = wire.target_of(body)
        state = self._state
        if target.kind == b"S":
            state.statements.pop(target.name, None)
        else:
            state.portals.pop(target.name, None)
        await state.backend.send(wire.frame(b"C", body), wire.FLUSH)
        answer, _ = await state.backend.until(b"3")
        if answer.kind == b"E":
            raise FailedError(answer)
        state.client.write(wire.CLOSE_COMPLETE)

    # What the private PostgreSQL runs

    async def _pass(self, statement: Statement, *messages: bytes, hidden: bytes = b"") -> None:
        """Let the private PostgreSQL run a statement, and pass what it sends."""
        backend = self._state.backend
        backend.forget_trees()
        if statement.piece is None or statement.piece.keyword not in _SAME_NAMES:
            self._state.command_ran()
        # PREPARE analyzes the statement that it prepares, and does not run it.
        prepares = statement.piece is not None and statement.piece.keyword == "PREPARE"
        with backend.analysis() if prepares else contextlib.nullcontext():
            await backend.send(*messages, wire.FLUSH)
            last = await self._relayed(hidden)
            # Only a command that was completed has effects to note.
            if last.kind == b"C":
                await self._ran(statement, committed=last.body.startswith(b"COMMIT"))
        await self._state.client.send(last.encode())

    async def _relayed(self, hidden: bytes) -> WireMessage:
        """Pass messages up to the end of an execution, which is returned."""
        client = self._state.client
        while True:
            message = await self._state.backend.next()
            if message.kind == b"E":
                raise FailedError(message)
            if message.kind in b"CIs":
                return message
            if message.kind not in hidden:
                await client.send(message.encode())
            # The server waits for data now, and says nothing before it has all of them.
            if message.kind == b"G":
                await self._copy_in()

    async def _copy_in(self) -> None:
        """Pass the client's data to COPY … FROM STDIN."""
        state = self._state
        while True:
            message = await state.client.receive()
            if message.kind in b"dcf":
                await state.backend.send(message.encode())
            elif message.kind not in b"HS":
                raise fatal("08P01", "unexpected message during COPY from stdin")
            if message.kind in b"cf":
                return

    async def _ran(self, statement: Statement, *, committed: bool) -> None:
        """Note the effects of a command that has run."""
        piece, state = statement.piece, self._state
        if piece is None:
            return
        words = [piece.word(place) for place in range(len(piece.tokens))]
        match piece.keyword:
            case "ABORT" | "COMMIT" | "END" | "ROLLBACK" if "TO" not in words:
                await state.transaction_ended(committed=committed)
            case "ROLLBACK":
                await forget_undone(state)
            # PREPARE TRANSACTION ends the session's transaction, and prepares no statement.
            case "PREPARE" if words[1] == "TRANSACTION":
                await state.transaction_ended()
            case "PREPARE":
                await self._analyzer.prepared(piece)
            case "DEALLOCATE":
                forget_prepared(state.statements, piece)
            # Its other forms leave statements and cursors alone.
            case "DISCARD" if words[1:] == ["ALL"]:
                state.statements.clear()
                state.portals.clear()
            case "CLOSE":
                closed = utility_of(piece)
                if isinstance(closed, CloseCursor) and closed.name is not None:
                    state.portals.pop(closed.name, None)
                else:
                    state.portals.clear()


def forget_prepared(statements: dict[bytes, Statement], piece: Piece) -> None:
    """DEALLOCATE has removed a statement, or all."""
    place = 2 if piece.word(1) == "PREPARE" and len(piece.tokens) > 2 else 1
    if piece.word(place) == "ALL":
        statements.clear()
    else:
        statements.pop(identifier(piece, place), None)


def _explained(message: WireMessage) -> WireMessage:
    """The guard's error in words that a client understands."""
    notice = wire.notice_of(message.body)
    if notice.code != GUARD_CODE or notice.message != GUARD_MESSAGE:
        return message
    problem = Problem(
        NOT_SUPPORTED,
        "this way of reading a table of the lake is not supported",
        hint="Read it with SELECT, COPY (SELECT …) TO STDOUT or a cursor.",
    )
    return WireMessage(b"E", problem.encode()[wire.HEADER_BYTES :])


def _moved(message: WireMessage, text: bytes, start: int) -> WireMessage:
    """An error of one of several statements: its position counts from the start of the text."""
    notice = wire.notice_of(message.body)
    position = notice.fields.get("P")
    if not start or position is None:
        return message
    # A position counts characters, not bytes.
    before = len(text[:start].decode("utf-8", "replace"))
    moved = Notice({**notice.fields, "P": str(int(position) + before).encode()})
    return WireMessage(b"E", moved.encode(b"E")[wire.HEADER_BYTES :])
