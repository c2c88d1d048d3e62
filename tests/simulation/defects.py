"""Fixed defects, put back into the code: a simulation that does not find them proves nothing.

Each names the text of its fix. If the text has moved, the test reports it: enter the new text here.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.archive.errors import FileTakenError
from headrace.archiver import change_store as archiver_sink
from headrace.archiver import file_writer
from headrace.archiver.builder import Builder
from headrace.archiver.change_store import ArchiveChangeStore
from headrace.archiver.file_writer import FileWriter
from headrace.jetstream.state import Lease
from headrace.postgres.relation_facts import ReadingAbandonedError
from headrace.publisher import emitted_messages
from headrace.publisher.chain_pipe import ChainPipe
from headrace.publisher.change_store import StreamChangeStore
from headrace.publisher.progress_writer import ProgressWriter
from headrace.publisher.schema_book import SchemaBook

_Spoil = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Defect:
    """The spoiled code, and the kind of history that meets it."""

    name: str
    kind: str
    spoil: _Spoil


def without(patch: pytest.MonkeyPatch, owner: Any, method: str, mend: str, instead: str) -> None:
    """Compile a method again with other text in place of the fix's."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, method)))
    if mend not in source:
        raise AssertionError(f"the correction is no longer in {owner.__name__}.{method}: {mend!r}")
    scope = vars(sys.modules[owner.__module__])
    code = "from __future__ import annotations\n" + source.replace(mend, instead)
    made: dict[str, Any] = {}
    exec(compile(code, f"<{method} without its correction>", "exec"), scope, made)  # noqa: S102  # a test's own text
    patch.setattr(owner, method, made[method])


def _message_ids_of_all_sources_alike(patch: pytest.MonkeyPatch) -> None:
    """Two sources give an emitted message one id, and a refused duplicate counts as stored."""
    patch.setattr(
        emitted_messages, "emitted_message_id", lambda lsn, prefix, _: f"{lsn:x}-_message.{prefix}"
    )
    without(patch, ChainPipe, "_stored", 'if answer.get("duplicate"):', "if False:")


def _fork_judged_by_written_progress(patch: pytest.MonkeyPatch) -> None:
    """A new server is compared with the progress written last, not with what was delivered."""
    delivered = "max(progress.position, self._delivery.position)"
    without(patch, StreamChangeStore, "on_epoch", delivered, "progress.position")


def _files_forgotten_at_a_resync(patch: pytest.MonkeyPatch) -> None:
    """The files of a table, from the catalog, are not kept with a shape from a row."""
    enter = SchemaBook._enter

    def forgetful(self: SchemaBook, token: str, entry: Any, changes: Any, *, resync: bool) -> Any:
        told = enter(self, token, entry, changes, resync=resync)
        first = any(change["change"] == "table_first_seen" for change in changes)
        if entry.xid and (resync or first):
            self._entries[token] = type(entry)(
                **{name: getattr(entry, name) for name in entry.__slots__} | {"storage": ""}
            )
        return told

    patch.setattr(SchemaBook, "_enter", forgetful)


def _source_not_remembered(patch: pytest.MonkeyPatch) -> None:
    """Which server it is, and where its slot began, is written with the first progress only."""
    without(patch, ProgressWriter, "join", "await self._cell.write(known.encode())", "pass")


def _taken_file_is_ones_own(patch: pytest.MonkeyPatch) -> None:
    """A file that exists after a put without an answer counts as the one that was put."""
    patch.setattr(file_writer, "FileTakenError", FileTakenError, raising=False)
    unreachable = "except ArchiveUnreachableError as error:"
    without(
        patch,
        FileWriter,
        "_put",
        unreachable,
        f"except FileTakenError: return\n        {unreachable}",
    )


def _confirmed_before_the_put(patch: pytest.MonkeyPatch) -> None:
    """The content of a file counts as stored before its store has it."""
    early = "self.end = replace(self.end, known_lsn=max(self.end.known_lsn, info.end_lsn))"
    without(patch, FileWriter, "write", 'failpoint("archiver.before_put")', early)


def _last_file_not_read(patch: pytest.MonkeyPatch) -> None:
    """A file that was written and not confirmed is not looked for after a restart."""
    without(patch, FileWriter, "_put", "raise", "return")


def _complete_loss_without_a_gap(patch: pytest.MonkeyPatch) -> None:
    """The publisher knows of nothing, and takes a used slot for a new one."""
    unused = "gap_before(start, replace(opening, slot_used=False))"
    without(patch, StreamChangeStore, "on_epoch", "gap_before(start, opening)", unused)


def _waiting_for_a_bucket_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    """A process that waits for its lease never creates the bucket again."""
    without(patch, Lease, "acquire", "await self._check_bucket(scope)", "pass")


def _gap_at_the_last_row(patch: pytest.MonkeyPatch) -> None:
    """A gap that ends where an emitted message ended takes that message's position."""
    behind = "max(Position(gap.up_to - 1, 0), Position(self._last.lsn, self._last.seq + 1))"
    without(patch, Builder, "tell_gap", behind, "Position(gap.up_to - 1, 0)")


def _abandoned_reading_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A stop while the catalog doesn't answer leaves a table in the shape that it had before."""
    patch.setattr(archiver_sink, "ReadingAbandonedError", ReadingAbandonedError, raising=False)
    describe = "shape = await self._relations.describe(self._scope, decoded, builder.cursor.xid)"
    without(
        patch,
        ArchiveChangeStore,
        "_on_entry",
        describe,
        f"try: {describe}\n            except ReadingAbandonedError: return",
    )


DEFECTS = (
    Defect("one message id for two sources", "sources", _message_ids_of_all_sources_alike),
    Defect("a fork behind unwritten progress", "fork", _fork_judged_by_written_progress),
    Defect("a rewrite after a resync", "ddl", _files_forgotten_at_a_resync),
    Defect("a promotion that is not written down", "fork", _source_not_remembered),
    Defect("a zombie's file taken for one's own", "archive_store", _taken_file_is_ones_own),
    Defect("confirmed before the file is stored", "archive_store", _confirmed_before_the_put),
    Defect("a failed put taken for stored", "archive_store", _last_file_not_read),
    Defect("a gap at the place of a message", "archive_slot", _gap_at_the_last_row),
    Defect("a store that is lost completely", "store", _complete_loss_without_a_gap),
    Defect("a lease in a bucket that is gone", "store", _waiting_for_a_bucket_that_is_gone),
    Defect("a table that a stop left unread", "archive_stop", _abandoned_reading_passed_over),
)
