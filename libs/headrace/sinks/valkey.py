"""Valkey or Redis as a sink: the state of each row as a hash, or the changes as streams.

A script on the server compares the stored position with the one that this session has stored last,
writes whole transactions, and stores the new position: all of it or, if the comparison fails,
nothing. Opening a sink changes the number that every script compares first, so an older process
can't write any more. All keys are in one hash slot.

It promises that readers see whole transactions only, except of one with more than
`PART_RECORDS_MAX` records. It never writes a key outside its prefix.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgpack
from valkey.asyncio import Valkey
from valkey.asyncio.retry import Retry
from valkey.backoff import NoBackoff
from valkey.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    ValkeyError,
)

from headrace.consumer.watermark import Watermark
from headrace.lsn import Position
from headrace.process.failpoint import failpoint
from headrace.sinks.bootstrap import copies
from headrace.sinks.marks import marks_from_json, marks_to_json
from headrace.sinks.port import (
    Promise,
    SinkAwayError,
    SinkError,
    SinkFencedError,
    SinkOptions,
)
from headrace.sinks.routing import RoutedTransaction
from headrace.sinks.target_options import check, read_options
from headrace.sinks.valkey_commands import Command, RowHashes, StreamEntries
from headrace.sinks.valkey_scripts import BEHIND, FENCED, OPEN, WRITE, WRONG_TYPE

CONNECT_TIMEOUT_S = 10.0
# A script with many records runs for a while, and the server answers nobody meanwhile.
ANSWER_TIMEOUT_S = 50.0
# Of one script: it holds back other clients for a few milliseconds.
SCRIPT_RECORDS = 500
# A larger transaction is written in several scripts, which limits the memory of both sides.
PART_RECORDS_MAX = 200_000
_PORT = 6379

# Characters with a meaning in the patterns of SCAN.
_GLOB = re.compile(r"[\\*?\[\]]")
_ESCAPED = r"\\\g<0>"


@dataclass(frozen=True, slots=True)
class ValkeyOptions:
    """The options of a sink in Valkey, `[sink.options]` in headrace.toml."""

    # state: a hash for each row. streams: a stream for each destination, with the events.
    form: str = "state"
    # The first part of each key, in braces; the sink's name if empty.
    prefix: str = ""
    # With streams: about the number of entries to keep; 0 for all.
    stream_length_max: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    # TLS; implied by any of the files.
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


@dataclass(slots=True)
class _Write:
    """The content of one script: whole transactions, and the position after them."""

    source: str
    commands: list[Command] = field(default_factory=list)
    records: int = 0
    # None if nothing in it moves the position, such as a single schema event.
    position: Position | None = None


class ValkeySink:
    """One session of a sink in Valkey."""

    promise: ClassVar[Promise] = Promise.EXACTLY_ONCE

    def __init__(self, options: SinkOptions) -> None:
        chosen = read_options(ValkeyOptions, options)
        check(
            chosen.form in {"state", "streams"}, options.name, "form", 'Use "state" or "streams".'
        )
        self._name = options.name
        self._stream = options.stream
        # Its methods are typed for the blocking client too, whose results can't be awaited.
        self._client: Any
        self._where, self._client = _client(options, chosen)
        self._prefix = prefix = f"{{{chosen.prefix or options.name}}}"
        self._own_key = f"{prefix}:headrace"
        self._form: RowHashes | StreamEntries
        if chosen.form == "state":
            self._form = RowHashes(prefix, options.name)
        else:
            self._form = StreamEntries(prefix, chosen.stream_length_max)
        self._epoch = b""
        # The position that the server has, as stored; and as marks.
        self._position = b""
        self._marks: dict[str, Watermark] = {}
        self._writes: list[_Write] = []

    async def open(self) -> Mapping[str, Watermark]:
        """Take the next number, which ends an older process, and read the position with it."""
        with self._translated("open"):
            await self._refuse_eviction()
            # Before the number is taken: a server that refuses scripts fences nobody.
            await self._client.script_load(WRITE.text)
            epoch, position = await self._client.eval(OPEN, 1, self._own_key)
        self._epoch = str(epoch).encode()
        self._position = position or b""
        if self._position:
            self._marks = marks_from_json(self._position, self._stream)
        return dict(self._marks)

    async def check(self) -> str:
        """Log in, and ask how the server uses its memory."""
        with self._translated("connect"):
            await self._refuse_eviction()
        return "the server accepts the login"

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        """Keep the commands of these transactions until the commit."""
        for transaction in transactions:
            self._take(transaction)
            waiting = sum(one.records for one in self._writes)
            if not transaction.ends and waiting >= PART_RECORDS_MAX:
                await self._send(None)

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        """Run the scripts, in order and without waiting in between."""
        begun = copies(marks)
        if begun and isinstance(self._form, RowHashes) and not any(c.snapshot_id for c in begun):
            # Rows that were deleted since are not in the copies.
            # At the first commit of new copies, before any of their rows is written.
            self._writes.insert(0, _Write("", await self._removals()))
        await self._send(marks)

    async def _removals(self) -> list[Command]:
        with self._translated("commit"):
            found = self._client.scan_iter(f"{_GLOB.sub(_ESCAPED, self._prefix)}:*", _type="set")
            return [["CLEAR", index] async for index in found]

    async def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(ValkeyError, OSError):
            await self._client.aclose()

    def _take(self, transaction: RoutedTransaction) -> None:
        count = len(transaction.records)
        last = self._writes[-1] if self._writes else None
        # A script that does not move the position would be repeated after a crash.
        fits = last is not None and (
            last.position is None or last.records + count <= SCRIPT_RECORDS
        )
        if last is None or not fits or last.source != transaction.source:
            last = _Write(transaction.source)
            self._writes.append(last)
        last.commands += self._form.commands(transaction.records)
        last.records += count
        # The event after a schema event has the same position.
        moved = [one.event.position for one in transaction.records if one.event.advances]
        if moved:
            last.position = moved[-1]

    async def _send(self, marks: Mapping[str, Watermark] | None) -> None:
        """Run one script for each write; the last one stores `marks`, if there are any."""
        writes, self._writes = self._writes, []
        if not writes and marks is not None:
            # A script without commands, which stores the marks.
            writes = [_Write("")]
        position, reached = self._position, dict(self._marks)
        # Each script is atomic, and the position links them: MULTI would add nothing.
        pipeline = self._client.pipeline(transaction=False)
        for number, one in enumerate(writes):
            if one.position is not None:
                # Only the position: a message that is read to here may have more events.
                before = reached.get(one.source, Watermark())
                reached[one.source] = replace(before, position=one.position)
            if number == len(writes) - 1 and marks is not None:
                reached = dict(marks)
            following = marks_to_json(reached, self._stream)
            packed = msgpack.packb(one.commands, use_bin_type=False)
            arguments: list[Any] = [self._own_key, self._epoch, position, following, packed]
            pipeline.evalsha(WRITE.sha, 1, *arguments)
            # The next script expects what this one stores: if one fails, those after it write
            # nothing.
            position = following
        failpoint("sink.half_written")
        with self._translated("commit"):
            # An error that the pipeline raises would contain the command, and with it rows.
            for answer in await pipeline.execute(raise_on_error=False):
                self._check(answer)
        # Only now: after an error the session ends, and the next one reads what the server has.
        self._position, self._marks = position, reached
        failpoint("sink.half_committed")

    def _check(self, answer: object) -> None:
        if isinstance(answer, Exception):
            raise answer
        if answer == FENCED:
            raise SinkFencedError(f"{self._where}: another process has opened {self._name}")
        if answer == BEHIND:
            # A server that was restored, or a replica that became the primary: the next session
            # continues from what it has.
            raise SinkAwayError(f"{self._where} has lost commits of {self._name}")
        if isinstance(answer, bytes) and answer.startswith(WRONG_TYPE):
            key = answer.removeprefix(WRONG_TYPE).decode(errors="replace")
            raise SinkError(
                f"{self._where}: the key {key} is not of the type that {self._name} writes",
                remedy="Remove the key, or set another `prefix`.",
            )

    async def _refuse_eviction(self) -> None:
        """A server that removes keys when its memory is full would remove the position too."""
        info = await self._client.info("memory")
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if info.get("maxmemory") and policy.startswith("allkeys"):
            raise SinkError(
                f"{self._where} removes keys when its memory is full ({policy})",
                remedy="Set maxmemory-policy to noeviction, or to one of volatile-*.",
            )

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Any:
        try:
            yield
        except (AuthenticationError, NoPermissionError) as error:
            raise SinkError(
                f"{self._where} does not allow {self._name} to {doing}: {error}",
                remedy=(
                    "Check username and password. The user needs EVAL, EVALSHA, SCRIPT LOAD, INFO "
                    f"and the write commands on keys ~{self._own_key.partition(':')[0]}:*."
                ),
            ) from error
        except (BusyLoadingError, ReadOnlyError) as error:
            raise SinkAwayError(f"{self._where} can't {doing} now: {error}") from error
        except ResponseError as error:
            if _passing(error):
                raise SinkAwayError(f"{self._where} can't {doing} now: {error}") from error
            raise SinkError(f"{self._where} refused to {doing}: {error}") from error
        except (ValkeyError, OSError) as error:
            raise SinkAwayError(f"{self._where} failed to {doing}: {error}") from error


def _passing(error: ResponseError) -> bool:
    """Whether another attempt may succeed: memory, a lost script, a failover."""
    words = ("OOM", "NOSCRIPT", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF")
    return str(error).startswith(words) or type(error).__name__ in {
        "NoScriptError",
        "OutOfMemoryError",
    }


def _client(given: SinkOptions, options: ValkeyOptions) -> tuple[str, Valkey]:
    url = urlsplit(given.to)
    check(
        bool(url.hostname) and url.password is None,
        given.name,
        "to",
        "It is valkey://host:6379/0; set the password as an option.",
    )
    database = url.path.strip("/") or "0"
    check(database.isdigit(), given.name, "to", "Its path is the database's number.")
    files: dict[str, Any] = {
        "ssl_ca_certs": options.ca_file,
        "ssl_certfile": options.certificate_file,
        "ssl_keyfile": options.key_file,
    }
    client = Valkey(
        host=str(url.hostname),
        port=url.port or _PORT,
        db=int(database),
        username=options.username or None,
        password=options.password or None,
        ssl=options.tls or bool(options.ca_file or options.certificate_file),
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=ANSWER_TIMEOUT_S,
        # The next session resolves an unknown outcome.
        retry=Retry(NoBackoff(), 0),
        client_name=f"headrace-{given.name}",
        **{name: value for name, value in files.items() if value},
    )
    return f"Valkey at {url.hostname}:{url.port or _PORT}", client
