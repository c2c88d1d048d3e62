"""Prepares statements: lets the private PostgreSQL analyze a text, and decides who runs it.

A statement whose tree reads a table of the lake gets a plan; all others are the private
PostgreSQL's. If in doubt a statement goes there, where the guard ends it with an error; what the
guard doesn't see is refused here: ONLY, and COPY of a table.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from headrace.sql import wire
from headrace.sql.copy_to_stdout import copy_form
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.exact_text import may_fail_in_planning
from headrace.sql.query_tree import Node, QueryTreeError, parse_tree
from headrace.sql.statements import (
    CloseCursor,
    CopyOut,
    Declare,
    Explain,
    Fetch,
    Piece,
    Prepare,
    Run,
    split,
    utility_of,
)
from headrace.sql.wire import Parse
from headrace.sql_server.backend import uses
from headrace.sql_server.lake_reader import LakeReader, refusal_of
from headrace.sql_server.own_plans import (
    ClosePlan,
    CopyPlan,
    DeclarePlan,
    ExplainPlan,
    FetchPlan,
    QueryPlan,
    RefusedPlan,
    RunPlan,
    ShowLsnPlan,
    text_column,
)
from headrace.sql_server.plans import LakeQuery, LookUp, Statement, needs_of, rows_of
from headrace.sql_server.problems import (
    NOT_SUPPORTED,
    READ_ONLY,
    FailedError,
    StatementRefusedError,
    refused,
    unsupported,
)
from headrace.sql_server.state import SessionState

# They read no table, so they need no tree.
_WITHOUT_TREE: Final = frozenset(
    {
        "ABORT",
        "BEGIN",
        "CLOSE",
        "COMMIT",
        "DEALLOCATE",
        "DISCARD",
        "END",
        "LISTEN",
        "NOTIFY",
        "RELEASE",
        "RESET",
        "ROLLBACK",
        "SAVEPOINT",
        "SET",
        "SHOW",
        "START",
        "UNLISTEN",
    }
)
# Commands that name a prepared statement or a cursor.
_BY_NAME: Final = frozenset({"CLOSE", "EXECUTE", "FETCH", "MOVE"})
_INNER: Final = b"headrace: an inner query"
_COPY_TO: Final = re.compile(rb"COPYSTMT\s.*?:is_from\s+false", re.DOTALL)
_CHANGES: Final = re.compile(rb":resultRelation\s+[1-9]")
_SELECT: Final = 1
# A table, as opposed to a subquery, which a view is after rewriting.
_RELATION: Final = 0
_UTILITY: Final = 6
_COMMANDS: Final = {2: "UPDATE", 3: "INSERT", 4: "DELETE", 5: "MERGE"}


class Analyzer:
    """One session's analysis."""

    def __init__(self, state: SessionState, reader: LakeReader) -> None:
        self._state = state
        self._reader = reader

    async def prepare(self, parse: Parse, piece: Piece | None = None) -> Statement:
        """Prepare a statement under its name in the private PostgreSQL."""
        if piece is None:
            pieces = split(parse.text, standard_strings=self._state.backend.standard_strings)
            # Several statements are PostgreSQL's to refuse.
            piece = pieces[0] if len(pieces) == 1 else None
        keyword = "" if piece is None else piece.keyword
        if keyword == "SHOW" and piece is not None and _shows_lsn(piece):
            return await self._show_lsn(parse, piece)
        if keyword == "CLOSE" and piece is not None and (name := self._held(piece)) is not None:
            closing = Statement(piece, plan=ClosePlan(self._state, name))
            await self._parse(parse, closing, needs_tree=False)
            return closing
        # All others need one: a statement whose tree is missing might read the lake unseen.
        needs_tree = piece is not None and keyword not in _WITHOUT_TREE
        statement = Statement(piece, parse=parse)
        await self._parse(parse, statement, needs_tree=needs_tree)
        if not needs_tree or piece is None:
            return statement
        trees = list(self._state.backend.trees)
        try:
            await self._plan(statement, parse, piece, trees)
        except StatementRefusedError as error:
            await self.drop(parse.name)
            # The client must not execute what was refused: the name is free again.
            raise error from None
        return statement

    async def current(self, name: bytes, statement: Statement) -> Statement:
        """A prepared statement as its names are understood now. PostgreSQL, too, looks them up
        again: after SET search_path they may lead to other tables.
        """
        piece, plan = statement.piece, statement.plan
        if piece is not None and piece.keyword in _BY_NAME:
            return await self._named(statement, piece)
        if plan is None or isinstance(plan, ShowLsnPlan) or not self._is_old(statement):
            return statement
        if isinstance(plan, QueryPlan):
            return await self._looked_up(statement, plan)
        # COPY, DECLARE and EXPLAIN contain their query; PostgreSQL analyzes it when they run.
        assert statement.parse is not None, "PREPARE takes none of these commands"
        _check_reading(statement, statement.parse.text, self._state.look_up())
        await self.drop(name)
        return await self.prepare(statement.parse, piece)

    async def _named(self, statement: Statement, piece: Piece) -> Statement:
        """EXECUTE, FETCH or CLOSE: another statement or cursor may have the name now."""
        found = replace(statement, plan=None)
        utility = utility_of(piece)
        if isinstance(utility, Run):
            self._plan_run(found, utility)
            if isinstance(found.plan, RunPlan) and self._is_old(found.plan.prepared):
                prepared = found.plan.prepared
                assert isinstance(prepared.plan, QueryPlan), "RunPlan is for these only"
                looked_up = await self._looked_up(prepared, prepared.plan)
                self._state.statements[utility.name] = looked_up
                # It may be a refusal now.
                self._plan_run(found, utility)
        elif isinstance(utility, Fetch) and utility.name in self._state.portals:
            self._plan_fetch(found, utility)
        elif (held := self._held(piece)) is not None:
            found.plan = ClosePlan(self._state, held)
        return found

    def _is_old(self, statement: Statement) -> bool:
        """Whether its names may mean something else than when they were looked up."""
        then, now = statement.looked_up, self._state.look_up()
        if then is None:
            return True
        if (then.commands, then.definitions) != (now.commands, now.definitions):
            return True
        plan = statement.plan
        lake = self._state.lake.relids
        only_tables = isinstance(plan, QueryPlan) and all(
            need.relid in lake for need in plan.query.needs
        )
        # An administrator changes views, and the front doesn't learn of it. Within a transaction
        # the statement's locks keep them as they are.
        return not only_tables and then.transactions != now.transactions

    async def _looked_up(self, statement: Statement, plan: QueryPlan) -> Statement:
        """A query that is analyzed again. Portals that are open keep the statement as it was."""
        _check_reading(statement, plan.query.text, self._state.look_up())
        again = Statement(None)
        parse = Parse(_INNER, plan.query.text, statement.parameters)
        await self._parse(parse, again, needs_tree=True, replaces=True)
        trees = list(self._state.backend.trees)
        if trees != [plan.query.tree]:
            # As PostgreSQL: drivers have read the description, and decode rows by it.
            if _row_type(again) != _row_type(statement):
                raise refused(NOT_SUPPORTED, "cached plan must not change result type")
            if not any(self._reads_lake(tree) for tree in trees):
                raise unsupported(
                    "a prepared statement whose names lead to other tables now", "Prepare it again."
                )
            statement = replace(statement, columns=again.columns)
            self._plan_query(statement, trees, plan.query.text)
        return replace(statement, looked_up=again.looked_up)

    async def _parse(
        self, parse: Parse, statement: Statement, *, needs_tree: bool, replaces: bool = False
    ) -> None:
        """Let the private PostgreSQL parse and describe; its trees are in `backend.trees`. With
        `replaces`, another statement may have the name.
        """
        backend = self._state.backend
        # Before the analysis: a definition that comes meanwhile makes it old.
        statement.looked_up = self._state.look_up()
        for attempt in range(2):
            backend.forget_trees()
            with backend.analysis():
                await self._parse_once(parse, statement, replaces=replaces)
            if backend.trees or not needs_tree:
                return
            # The client has changed client_min_messages, or reset what the front has set.
            if attempt == 0:
                await self.drop(parse.name)
                await backend.renew_analyzer()
        raise refused("XX000", "the private PostgreSQL sent no parse tree")

    async def _parse_once(self, parse: Parse, statement: Statement, *, replaces: bool) -> None:
        backend = self._state.backend
        messages = (parse.encode(), wire.describe(b"S", parse.name), wire.FLUSH)
        if replaces:
            await backend.send(wire.close(b"S", parse.name), *messages)
            await backend.until(b"3")
        else:
            await backend.send(*messages)
        answer, _ = await backend.until(b"1")
        if answer.kind == b"E":
            raise FailedError(answer)
        await self._read_description(statement)
        # ONLY would read the empty table above the guard, and answer without rows.
        if backend.reads_parent:
            await self.drop(parse.name)
            raise _reads_parent(backend.trees, exact=backend.reads_exact())

    async def _read_description(self, statement: Statement) -> None:
        answer, found = await self._state.backend.until(b"Tn", b"t")
        if answer.kind == b"E":
            raise FailedError(answer)
        statement.parameters = wire.parameter_types_of(found[0].body)
        statement.columns = wire.columns_of(answer.body) if answer.kind == b"T" else None

    async def _described(self, name: bytes, statement: Statement) -> None:
        await self._state.backend.send(wire.describe(b"S", name), wire.FLUSH)
        await self._read_description(statement)

    async def drop(self, name: bytes) -> None:
        """Forget a statement in the private PostgreSQL."""
        backend = self._state.backend
        await backend.send(wire.close(b"S", name), wire.FLUSH)
        await backend.until(b"3")

    async def _plan(
        self, statement: Statement, parse: Parse, piece: Piece, trees: list[bytes]
    ) -> None:
        """Give the statement a plan if it reads the lake."""
        utility = utility_of(piece)
        lake = any(self._reads_lake(tree) for tree in trees)
        match utility:
            case CopyOut():
                await self._plan_copy(statement, parse, utility)
            case Declare() | Explain():
                # Their own tree names a view, and not yet the tables that it reads.
                await self._plan_nested(statement, parse, utility, piece, lake=lake)
            case Run():
                self._plan_run(statement, utility)
            # Other cursors are PostgreSQL's own.
            case Fetch() if utility.name in self._state.portals:
                self._plan_fetch(statement, utility)
            case _ if lake:
                self._plan_query(statement, trees, piece.text)
            # COPY of a table reads no descendants, so the guard would not notice it (ADR 0034).
            case _ if any(_COPY_TO.search(tree) for tree in trees):
                raise unsupported("this form of COPY", "Use COPY (SELECT …) TO STDOUT.")

    def _held(self, piece: Piece) -> bytes | None:
        """The held cursor that a statement closes."""
        close = utility_of(piece)
        if not isinstance(close, CloseCursor) or close.name is None:
            return None
        portal = self._state.portals.get(close.name)
        if portal is None or not portal.held:
            return None
        return close.name

    def _plan_query(self, statement: Statement, trees: list[bytes], text: bytes) -> None:
        if len(trees) != 1:
            raise refused("XX000", "the private PostgreSQL sent several parse trees")
        try:
            query = self._lake_query(trees[0], text)
        except StatementRefusedError as error:
            # It can still be described.
            statement.plan = RefusedPlan(error)
            return
        statement.plan = QueryPlan(self._state, self._reader, query)

    async def _plan_copy(self, statement: Statement, parse: Parse, copy: CopyOut) -> None:
        inner = Statement(None)
        await self._inner(inner, Parse(_INNER, copy.query, parse.types))
        if inner.plan is None or (copy.start < 0 and _reads_view(inner)):
            # A view's name is PostgreSQL's to refuse.
            return
        if not copy.to_client:
            raise unsupported("COPY to a file or a program", "Use COPY … TO STDOUT.")
        try:
            strings = self._state.backend.standard_strings
            form = copy_form(copy.options, standard_strings=strings)
        except NotProvenEqualError as error:
            raise refusal_of(error) from error
        options = copy.options
        # The old form has BINARY in front, where COPY of a query doesn't accept it.
        if options.startswith(b"BINARY "):
            options = b"WITH BINARY " + options.removeprefix(b"BINARY ")
        statement.plan = CopyPlan(self._state, inner, form, options)
        statement.describes_rows = False

    async def _plan_nested(
        self,
        statement: Statement,
        parse: Parse,
        utility: Declare | Explain,
        piece: Piece,
        *,
        lake: bool,
    ) -> None:
        inner = Statement(None)
        await self._inner(inner, Parse(_INNER, utility.query, parse.types))
        # A view may make the statement the lake's, by its own tree.
        if inner.plan is None and not lake:
            return
        if isinstance(inner.plan, RefusedPlan):
            statement.plan = inner.plan
        elif not isinstance(inner.plan, QueryPlan):
            statement.plan = RefusedPlan(unsupported(f"this form of {piece.keyword}"))
        elif isinstance(utility, Declare):
            statement.plan = DeclarePlan(self._state, inner, utility)
        elif _plain_explain(utility):
            statement.plan = ExplainPlan(self._state, inner.plan, utility.analyze)
        else:
            statement.plan = RefusedPlan(
                unsupported("this option of EXPLAIN", "Use EXPLAIN or EXPLAIN ANALYZE.")
            )

    async def _inner(self, inner: Statement, parse: Parse) -> None:
        """Analyze the query inside a statement."""
        # The name may be left from another statement.
        await self._parse(parse, inner, needs_tree=True, replaces=True)
        trees = list(self._state.backend.trees)
        if any(self._reads_lake(tree) for tree in trees):
            self._plan_query(inner, trees, parse.text)

    def _plan_run(self, statement: Statement, run: Run) -> None:
        prepared = self._state.statements.get(run.name)
        if prepared is None or prepared.plan is None:
            return
        if isinstance(prepared.plan, QueryPlan):
            statement.plan = RunPlan(self._state, prepared, run)
            statement.columns = prepared.columns
        elif isinstance(prepared.plan, RefusedPlan):
            statement.plan = prepared.plan
        else:
            statement.plan = RefusedPlan(unsupported("EXECUTE of this statement"))

    def _plan_fetch(self, statement: Statement, fetch: Fetch) -> None:
        cursor = self._state.portals[fetch.name]
        if not isinstance(cursor.statement.plan, QueryPlan):
            raise unsupported("FETCH from this portal")
        statement.plan = FetchPlan(self._state, fetch.name, rows_of(fetch), fetch.move)
        statement.columns = None if fetch.move else cursor.columns

    async def _show_lsn(self, parse: Parse, piece: Piece) -> Statement:
        statement = Statement(piece)
        # The private PostgreSQL has a statement of the name, too, which shows nothing of the lake.
        placeholder = Parse(parse.name, b"SELECT ''::text WHERE false", ())
        await self._parse(placeholder, statement, needs_tree=False)
        statement.columns = (text_column("headrace.lsn"),)
        statement.plan = ShowLsnPlan(self._state, self._reader)
        return statement

    async def prepared(self, piece: Piece) -> None:
        """Learn of a statement that PREPARE has just prepared."""
        prepare = utility_of(piece)
        trees = list(self._state.backend.trees)
        if not isinstance(prepare, Prepare) or not trees:
            raise refused("XX000", "the front doesn't know what was prepared")
        if self._state.backend.reads_parent:
            await self.drop(prepare.name)
            raise _reads_parent(trees, exact=self._state.backend.reads_exact())
        statement = Statement(None, looked_up=self._state.look_up())
        await self._described(prepare.name, statement)
        # PREPARE's own tree comes first; the last one is that of the prepared statement.
        if self._reads_lake(trees[-1]):
            self._plan_query(statement, trees[-1:], prepare.query)
        self._state.statements[prepare.name] = statement

    def _reads_lake(self, tree: bytes) -> bool:
        lake = self._state.lake.relids
        return any(relid in lake for relid, _ in uses(tree))

    def _lake_query(self, tree: bytes, text: bytes) -> LakeQuery:
        try:
            nodes = parse_tree(tree.decode())
        except QueryTreeError as error:
            raise unsupported("this statement", str(error)) from error
        # DO ALSO rules add statements, which nothing here would run.
        if len(nodes) != 1:
            raise unsupported("a statement that rules have rewritten to several")
        node = nodes[0]
        command = node.get("commandType")
        if command != _SELECT:
            raise _not_a_query(node, command)
        lake = self._state.lake.relids
        relids = frozenset(relid for relid, _ in uses(tree) if relid in lake)
        folds = may_fail_in_planning(node, self._state.lake.builtins)
        return LakeQuery(node, needs_of(node), relids, self._shapes(relids), text, tree, folds)

    def _shapes(self, relids: frozenset[int]) -> dict[int, tuple[object, ...]]:
        return {relid: self._state.lake.shapes.get(relid, ()) for relid in relids}


def _row_type(statement: Statement) -> list[tuple[bytes, int, int]]:
    return [(each.name, each.type_oid, each.modifier) for each in statement.columns or ()]


def _check_reading(statement: Statement, text: bytes, now: LookUp) -> None:
    """PostgreSQL keeps a statement as it was parsed; the front has its text, which the session may
    read differently now.
    """
    then = statement.looked_up
    if then is None:
        return
    quoted = then.standard_strings != now.standard_strings and b"\\" in text
    if quoted or (then.encoding != now.encoding and not text.isascii()):
        raise unsupported(
            "a prepared statement after a change of how its text is read", "Prepare it again."
        )


def _reads_view(statement: Statement) -> bool:
    plan = statement.plan
    if not isinstance(plan, QueryPlan):
        return False
    return any(each.get("rtekind") != _RELATION for each in plan.query.node.nodes("rtable"))


def _reads_parent(trees: list[bytes], *, exact: bool) -> StatementRefusedError:
    if exact:
        return refused("42501", "permission denied for a table of the SQL server")
    if any(_CHANGES.search(tree) for tree in trees):
        return _read_only("INSERT")
    return unsupported("ONLY", "A table of the lake has no other tables below it.")


def _read_only(command: str) -> StatementRefusedError:
    return refused(
        READ_ONLY,
        f"cannot execute {command} on tables of the lake",
        hint="The lake is written from its source only.",
    )


def _not_a_query(node: Node, command: object) -> StatementRefusedError:
    if command == _UTILITY:
        return unsupported("this command", "The lake's tables can only be read.")
    name = _COMMANDS.get(command if isinstance(command, int) else 0, "this command")
    if node.get("resultRelation"):
        return _read_only(name)
    return unsupported(name)


def _shows_lsn(piece: Piece) -> bool:
    words = [piece.word(place) for place in range(1, len(piece.tokens))]
    return words == ["HEADRACE", ".", "LSN"]


def _plain_explain(explain: Explain) -> bool:
    allowed = {b"", b"analyze", b"verbose", b"analyze verbose", b"(analyze)", b"(format text)"}
    return b" ".join(explain.options.lower().split()) in allowed
