"""A pytest plugin that tries mutants on the quick tests: collected and imported once, in one process.

First each test runs on the code as it is, and the plugin notes which functions it reaches. Then each
mutant gets a fork of the process: the mutated function's code takes the place of the original's, and
the tests that reach it run, the quickest first, until one fails. A fork costs no import, so most
mutants take a fraction of a second.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest

from tests.mutants.mutations import Mutation

ROOT = Path(__file__).parents[2]
_OURS = (str(ROOT / "libs"), str(ROOT / "services"))
# Fixtures of real servers: their tests are not quick, and a fork must not share a connection.
_SERVERS = frozenset({"session_servers", "own_nats", "own_postgres", "database", "nats_server"})
# These read the repository's text and no function's result.
_READERS = ("architecture", "dead_code", "docs_site", "help", "imports", "lock", "pages", "prose")
# A mutant gets this long; a test that is under way may take the rest, until it counts as hung.
TESTS_S = 15.0
MUTANT_S = 60.0


class Outcome(StrEnum):
    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and its module."""

    path: str
    mutation: Mutation

    @property
    def name(self) -> str:
        return f"{self.path}:{self.mutation.line} {self.mutation.function}: {self.mutation.what}"

    @property
    def accepted_as(self) -> str:
        """Its name without the line, which other changes move."""
        return f"{self.path} {self.mutation.function}: {self.mutation.what}"


@dataclass(slots=True)
class Forked:
    """Runs the mutants in place of the tests that pytest has collected."""

    mutants: Sequence[Mutant]
    workers: int
    outcomes: dict[Mutant, tuple[Outcome, str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    _reach: dict[str, set[pytest.Item]] = field(default_factory=lambda: defaultdict(set))
    _took: dict[pytest.Item, float] = field(default_factory=dict)
    _functions: dict[tuple[str, str, int], list[FunctionType]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        quick = [item for item in session.items if _is_quick(item)]
        for item in quick:
            self._note(session, item)
        self._functions.update(_functions())
        gc.freeze()
        running: dict[int, tuple[Mutant, float, int]] = {}
        waiting = list(reversed(self.mutants))
        while waiting or running:
            while waiting and len(running) < self.workers:
                mutant = waiting.pop()
                reader, pid = self._fork(session, mutant)
                running[pid] = mutant, time.monotonic() + MUTANT_S, reader
            self._collect(running)
        return True

    def _note(self, session: pytest.Session, item: pytest.Item) -> None:
        codes: set[CodeType] = set()

        def note(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(_OURS):
                codes.add(frame.f_code)

        began = time.monotonic()
        with _profiled(note):
            passed = _passes(session, item)
        if not passed:
            self.failed.append(item.nodeid)
            return
        self._took[item] = time.monotonic() - began
        for code in codes:
            self._reach[f"{code.co_filename}:{code.co_firstlineno}"].add(item)

    def _fork(self, session: pytest.Session, mutant: Mutant) -> tuple[int, int]:
        reader, writer = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            os.close(writer)
            return reader, pid
        with Path(os.devnull).open("r+b") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        os.write(writer, self._killer(session, mutant).encode()[:4000])
        os._exit(0)

    def _killer(self, session: pytest.Session, mutant: Mutant) -> str:
        """The first test that fails with the mutant, or nothing; in the fork."""
        path = ROOT / mutant.path
        tests = self._reach.get(f"{path}:{mutant.mutation.first_line}", set())
        if not tests or not self._put_in(mutant):
            return ""
        until = time.monotonic() + TESTS_S
        for item in sorted(tests, key=lambda item: self._took[item]):
            if time.monotonic() > until:
                return ""
            try:
                if not _passes(session, item):
                    return item.nodeid
            except BaseException:  # noqa: BLE001  # a mutant may raise anything, also in fixtures
                return item.nodeid
        return ""

    def _put_in(self, mutant: Mutant) -> bool:
        path = str(ROOT / mutant.path)
        mutated = compile(mutant.mutation.apply(Path(path).read_text()), path, "exec")
        code = _outermost(mutated, mutant.mutation)
        if code is None:
            return False
        found = self._functions.get((path, code.co_qualname, code.co_firstlineno), [])
        for function in found:
            function.__code__ = code
        return bool(found)

    def _collect(self, running: dict[int, tuple[Mutant, float, int]]) -> None:
        time.sleep(0.01)
        for pid, (mutant, until, reader) in list(running.items()):
            ended, _ = os.waitpid(pid, os.WNOHANG)
            late = time.monotonic() > until
            if not ended and not late:
                continue
            if not ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            del running[pid]
            with os.fdopen(reader) as pipe:
                killer = pipe.read()
            if not ended:
                self._end(mutant, Outcome.TIMED_OUT, "")
            else:
                self._end(mutant, Outcome.KILLED if killer else Outcome.SURVIVED, killer)

    def _end(self, mutant: Mutant, outcome: Outcome, killer: str) -> None:
        self.outcomes[mutant] = outcome, killer
        print(f"{outcome:9} {mutant.name}  {killer}", flush=True)


def _is_quick(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    slow = item.get_closest_marker("slow") or item.get_closest_marker("spark")
    reader = any(word in item.path.name for word in _READERS)
    return not slow and not reader and not fixtures & _SERVERS


def _passes(session: pytest.Session, item: pytest.Item) -> bool:
    failed = session.testsfailed
    session.shouldfail = False
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return session.testsfailed == failed


class _profiled:  # noqa: N801  # a context manager
    """Calls of this thread and of new ones are noted: asyncio.to_thread runs some elsewhere."""

    def __init__(self, note: Callable[[FrameType, str, object], None]) -> None:
        self._note = note

    def __enter__(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Each function of ours by its place; what they remember of earlier calls is forgotten."""
    found: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, functools._lru_cache_wrapper):
            one.cache_clear()
        elif type(one) is FunctionType and one.__code__.co_filename.startswith(_OURS):
            code = one.__code__
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(one)
    return found


def _outermost(module: CodeType, mutation: Mutation) -> CodeType | None:
    """The code of the function that holds the mutation: of nested ones the outermost."""
    for code in _own_functions(module):
        for inner in (code, *_nested(code)):
            if inner.co_name == mutation.function and inner.co_firstlineno == mutation.first_line:
                return code
    return None


def _own_functions(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and its classes, but none that is nested in another function."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            if one.co_flags & _OPTIMIZED:
                yield one
            else:
                yield from _own_functions(one)


def _nested(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _nested(one)


# CO_OPTIMIZED: of a function, not of a module or a class.
_OPTIMIZED = 1
