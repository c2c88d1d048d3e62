"""The steps of a transaction from its first change of a table on, stored before they are executed.

MariaDB commits before and after each statement that changes a table. Promises: after a crash at any
moment, executing the journal again continues where it was. Statements about rows are committed with
their number; a change of a table has no effect the second time, or shows that it was executed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace import log as logs
from headrace.mirror import target
from headrace.mirror.mariadb_session import MariadbSession, explained
from headrace.mirror.mariadb_statements import (
    JOURNAL,
    STATEMENT_BYTES,
    RowStatement,
    literal,
    plain_name,
    quoted,
    table_name,
)
from headrace.mirror.mirror_state import TABLE
from headrace.mirror.table import Phase, Table, TableState
from headrace.process.failpoint import failpoint

log = logs.logger("mirror")

# The mark of a journal that is committed and not executed completely.
MARK = "journal"
_OLD = "headrace_old"
STORED_TOGETHER = 500
EXECUTED_TOGETHER = 200
Entry = dict[str, Any]


class _StepRefusedError(Exception):
    """The server refused one of several statements that share a transaction."""


@dataclass(slots=True)
class Journal:
    """`identity` is unique; `done` is the number of the last entry that was executed."""

    session: MariadbSession
    identity: str
    done: int = 0
    _count: int = 0
    # Steps that are not stored yet, as rows of the statement that stores them.
    _unstored: list[str] = field(default_factory=list)
    # The number that the target has as `done`.
    _recorded: int = 0
    # Committed, and not executed completely.
    _is_open: bool = False
    # Tables that refused a step, with the reason: the rest of their steps is left out.
    _refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begun(cls, session: MariadbSession) -> Journal:
        """A new one, in the open transaction."""
        session.ask(f"DELETE FROM {JOURNAL}")
        return cls(session, uuid.uuid4().hex)

    @classmethod
    def found(cls, session: MariadbSession) -> Journal | None:
        """The one that a process left behind."""
        text = session.marks().get(MARK)
        if text is None:
            return None
        stored = json.loads(text)
        log.warning("journal_continues", journal=stored["id"], after=stored["done"])
        made = cls(session, stored["id"], stored["done"], _refused=stored["refused"])
        made._is_open = True
        made._recorded = made.done
        return made

    @staticmethod
    def is_open(marks: dict[str, str]) -> bool:
        """Whether a journal is not executed completely; takes its mark out of these."""
        return marks.pop(MARK, None) is not None

    def add(self, step: target.Step) -> None:
        """Store a step; raises if it can be refused already."""
        statements = self.session.statements
        match step:
            case target.CreateTable(table, replaces):
                self._check_free(table, replaces=replaces)
                # Two steps: executed a second time, neither removes rows of a later step.
                self._store(table, sql=f"DROP TABLE IF EXISTS {table_name(table)}")
                self._store(table, sql=statements.create(table))
            case target.DropTable(table):
                self._store(table, sql=f"DROP TABLE IF EXISTS {table_name(table)}")
            case target.SwapTables(table, replaces):
                live = replace(table, staging=False)
                self._check_free(live, replaces=replaces)
                self._store(table, swap=[plain_name(table), plain_name(live)])
                self._store(table, sql=f"DROP TABLE IF EXISTS {_OLD}")
            case target.AlterTable():
                # Unique, so the comment of an earlier change is never taken for this one.
                comment = f"headrace {self.identity} {self._count + 1}"
                place = plain_name(step.after)
                sql = statements.alter(step, comment)
                self._store(step.after, alter=sql, place=place, comment=comment)
                for statement in statements.filled(step):
                    self._store(statement.table, rows=statement.sql)
            case _:
                for statement in statements.rows(step):
                    self._store(statement.table, rows=statement.sql, expected=statement.expected)

    def _check_free(self, table: Table, *, replaces: bool) -> None:
        if not replaces and not table.staging and self.session.exists(plain_name(table)):
            raise target.ForeignTableError(table)

    def _store(self, table: Table | None, **entry: Any) -> None:
        self._count += 1
        if table is not None:
            entry["table"] = [table.schema, table.name]
        self._unstored.append(f"({self._count}, {literal(json.dumps(entry))})")
        if len(self._unstored) >= STORED_TOGETHER or len(self._unstored[-1]) > STATEMENT_BYTES:
            self._store_rest()

    def _store_rest(self) -> None:
        rows = self._unstored
        self._unstored = []
        while rows:
            # At least one; the next ones as long as the statement is short.
            size = 0
            some: list[str] = []
            while rows and (not some or size + len(rows[0]) < STATEMENT_BYTES):
                size += len(rows[0])
                some.append(rows.pop(0))
            self.session.ask(f"INSERT INTO {JOURNAL} VALUES {', '.join(some)}")

    def seal(self, marks: Mapping[str, str | None]) -> None:
        """Store the marks as the last step. The commit that follows decides that all happens."""
        self._store(None, marks=dict(marks))
        self._store_rest()
        self._is_open = True
        self._record()

    def execute(self) -> str:
        """Execute what is left; returns the tables that refused a step, with the reasons."""
        careful = False
        while self._is_open:
            try:
                self._execute_some(careful=careful)
            except _StepRefusedError:
                # The statements since the last record are executed again, each with a savepoint.
                self.session.roll_back()
                self.done = self._recorded
                careful = True
        return "; ".join(f"{name}: {reason}" for name, reason in self._refused.items())

    def _execute_some(self, *, careful: bool) -> None:
        """Execute the next steps, and record that."""
        failpoint("mariadb.journal")
        found = self.session.ask(
            f"SELECT number, entry FROM {JOURNAL} WHERE number > {self.done} "
            f"ORDER BY number LIMIT {EXECUTED_TOGETHER}"
        )
        for number, text in found:
            entry = json.loads(text)
            if "marks" in entry:
                self._finish(entry["marks"])
                return
            if "rows" not in entry:
                # It commits anyway; the rows before it must be recorded as done by then.
                self._record()
            self._step(entry, careful=careful)
            self.done = int(number)
            if "rows" not in entry:
                self._record()
        self._record()

    def _step(self, entry: Entry, *, careful: bool) -> None:
        schema, name = entry["table"]
        table = Table(schema, name, ())
        if table.token in self._refused:
            return
        is_rows = "rows" in entry
        try:
            with explained():
                if careful and is_rows:
                    # Rows of other tables share the transaction, and must survive a refusal.
                    self.session.ask("SAVEPOINT headrace_step")
                self._do(entry, table)
        except (target.TargetAwayError, target.TakenOverError):
            raise
        except target.TargetError as error:
            if is_rows and not careful:
                raise _StepRefusedError from error
            # Other steps have happened already, and can't be undone: this table is copied.
            if is_rows:
                self.session.ask("ROLLBACK TO SAVEPOINT headrace_step")
            # Only the reason: a client's error may contain the statement, and so a row.
            log.error("journal_refused", table=table.token, reason=str(error))  # noqa: TRY400
            self._refused[table.token] = str(error)
        failpoint("mariadb.journal_step")

    def _record(self) -> None:
        body = {"id": self.identity, "done": self.done, "refused": self._refused}
        self.session.keep({MARK: json.dumps(body)})
        self.session.commit()
        self._recorded = self.done

    def _do(self, entry: Entry, table: Table) -> None:
        if "rows" in entry:
            self.session.run(RowStatement(table, entry["rows"], entry.get("expected")))
        elif "alter" in entry:
            # The comment changes together with the table.
            if self.session.comment(entry["place"]) != entry["comment"]:
                self.session.ask(entry["alter"])
        elif "swap" in entry:
            self._swap(*entry["swap"])
        else:
            self.session.ask(entry["sql"])

    def _swap(self, staging: str, live: str) -> None:
        # Renamed already: the process died before that was recorded.
        if not self.session.exists(staging):
            return
        # Of an earlier swap, if the process died before its last step.
        self.session.ask(f"DROP TABLE IF EXISTS {_OLD}")
        renames = f"{quoted(staging)} TO {quoted(live)}"
        if self.session.exists(live):
            renames = f"{quoted(live)} TO {_OLD}, {renames}"
        self.session.ask(f"RENAME TABLE {renames}")

    def _finish(self, marks: Mapping[str, str | None]) -> None:
        """Store the marks with the last step; tables that refused one are to be copied again."""
        kept = dict(marks)
        for token, reason in self._refused.items():
            text = kept.get(TABLE + token) or self.session.marks().get(TABLE + token)
            # A table that these steps dropped has no state to correct.
            if text is not None:
                state = TableState.decode(text)
                changed = replace(
                    state, phase=Phase.WANTED, run=None, why=reason, awaited=state.live is not None
                )
                kept[TABLE + token] = changed.encode()
        self.session.keep({**kept, MARK: None})
        self.session.ask(f"DELETE FROM {JOURNAL}")
        failpoint("mariadb.journal_end")
        self.session.commit()
        self._is_open = False
