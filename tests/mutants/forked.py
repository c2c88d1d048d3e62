"""A pytest plugin that tries mutants on the quick tests: collected and imported once, in one process.

First each test runs on the code as it is, and the plugin notes which functions it reaches. Then each
mutant gets a fork of the process: the mutated function's code takes the place of the original's, and
the tests that reach it run, the quickest first, until one fails; then histories of the simulation do.
A fork costs no import, so most mutants take a fraction of a second.

No trial runs in the process itself: obstore starts threads at its first request, which a fork would
lack, and wait for without end.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import NoReturn

import pytest

from tests.mutants.mutations import Mutation
from tests.simulation.plan import drawn
from tests.simulation.world import history

ROOT = Path(__file__).parents[2]
_OURS = (str(ROOT / "libs"), str(ROOT / "services"))
# Fixtures of real servers: their tests are not quick, and a fork must not share a connection.
_SERVERS = frozenset({"session_servers", "own_nats", "own_postgres", "database", "nats_server"})
# These read the repository's text and no function's result.
_READERS = ("architecture", "dead_code", "docs_site", "help", "imports", "lock", "pages", "prose")
# The modules that histories of the simulation reach often enough to judge them.
_SIMULATED = (
    "libs/headrace/bus/",
    "libs/headrace/confirming/",
    "libs/headrace/jetstream/",
    "services/headrace/publisher/",
    "services/headrace/wal_reader/",
)
# CPU time that a mutant gets on the tests, and then on histories: the machine may be busy.
TESTS_S = 15.0
HISTORIES_S = 6.0
# A trial that takes so much more than without the mutant is endless, or waits forever.
ENDLESS_S, ENDLESS_TIMES = 10.0, 20.0
HUNG_S = 30.0
MUTANT_S = 300.0


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
        mutation = self.mutation
        place = f"{self.path}:{mutation.line} {mutation.function}"
        return f"{place}: {mutation.what} in {mutation.code}"

    @property
    def accepted_as(self) -> str:
        """Its name with the line's text for its number, which other changes move."""
        mutation = self.mutation
        return f"{self.path} {mutation.function}: {mutation.what} in {mutation.code}"


@dataclass(eq=False, slots=True)
class Trial:
    """A test or a history: whether it passes, and how long it took without any mutant."""

    name: str
    passes: Callable[[], bool]
    took_s: float = 0.0


@dataclass(slots=True)
class _Running:
    """A mutant in its fork."""

    mutant: Mutant
    until: float
    reader: int


@dataclass(slots=True)
class Forked:
    """Runs the mutants in place of the tests that pytest has collected."""

    mutants: Sequence[Mutant]
    workers: int
    histories: int = 0
    outcomes: dict[Mutant, tuple[Outcome, str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    _tests: dict[str, set[Trial]] = field(default_factory=lambda: defaultdict(set))
    _lives: dict[str, set[Trial]] = field(default_factory=lambda: defaultdict(set))
    _functions: dict[tuple[str, str, int], list[FunctionType]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._learn(
            [
                Trial(item.nodeid, functools.partial(_passes, session, item))
                for item in filter(_is_quick, session.items)
            ],
            self._tests,
        )
        if any(mutant.path.startswith(_SIMULATED) for mutant in self.mutants):
            seeds = range(self.histories)
            lives = [Trial(f"history {seed}", functools.partial(_holds, seed)) for seed in seeds]
            self._learn(lives, self._lives)
        self._functions.update(_functions())
        gc.freeze()
        running: dict[int, _Running] = {}
        waiting = list(reversed(self.mutants))
        while waiting or running:
            while waiting and len(running) < self.workers:
                mutant = waiting.pop()
                reader, pid = _forked(functools.partial(self._killer, mutant))
                running[pid] = _Running(mutant, time.monotonic() + MUTANT_S, reader)
            self._collect(running)
        return True

    def _learn(self, trials: Sequence[Trial], reach: dict[str, set[Trial]]) -> None:
        """Note in a fork the modules that each trial reaches, and how long it takes."""
        reader, writer = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            notes = [_noted(trial) for trial in trials]
            imported = [name for name in sys.modules if name.startswith("headrace.")]
            with os.fdopen(writer, "w") as pipe:
                json.dump((notes, imported), pipe)
            sys.stdout.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            notes, imported = json.load(pipe)
        os.waitpid(pid, 0)
        for trial, (passed, took_s, functions) in zip(trials, notes, strict=True):
            trial.took_s = took_s
            if not passed:
                self.failed.append(trial.name)
            else:
                for function in functions:
                    reach[function].add(trial)
        # Some are imported only by a trial: each mutant's fork would lack their functions.
        for name in imported:
            importlib.import_module(name)

    def _killer(self, mutant: Mutant) -> str:
        """The first trial that fails with the mutant, or nothing; in the fork."""
        place = f"{ROOT / mutant.path}:{mutant.mutation.first_line}"
        tests, lives = self._tests.get(place, set()), self._lives.get(place, set())
        if not (tests or lives) or not self._put_in(mutant):
            return ""
        return _first_failing(tests, TESTS_S) or _first_failing(lives, HISTORIES_S)

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

    def _collect(self, running: dict[int, _Running]) -> None:
        time.sleep(0.01)
        for pid, one in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            late = time.monotonic() > one.until
            if not ended and not late:
                continue
            if not ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            del running[pid]
            with os.fdopen(one.reader) as pipe:
                killer = pipe.read()
            if ended and os.WIFSIGNALED(status):
                killer = f"crashed by signal {os.WTERMSIG(status)}"
            self._end(one.mutant, killer if ended else _HUNG)

    def _end(self, mutant: Mutant, killer: str) -> None:
        outcome = Outcome.KILLED if killer else Outcome.SURVIVED
        # A trial that hung ended in a fork without the mutant.
        if killer == _HUNG:
            outcome = Outcome.TIMED_OUT
        self.outcomes[mutant] = outcome, killer
        print(f"{outcome:9} {mutant.name}  {killer}", flush=True)


def _noted(trial: Trial) -> tuple[bool, float, list[str]]:
    """Whether a trial passes on the code as it is, its time, and the functions that it reaches."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_OURS):
            codes.add(frame.f_code)

    began = time.monotonic()
    with _profiled(note):
        passed = trial.passes()
    took_s = time.monotonic() - began
    return passed, took_s, [f"{code.co_filename}:{code.co_firstlineno}" for code in codes]


def _forked(work: Callable[[], str]) -> tuple[int, int]:
    """Have a fork do it: where its answer is read, and its process."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        with Path(os.devnull).open("r+b") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        _ANSWER.append(writer)
        _answer(work())
    os.close(writer)
    return reader, pid


def _answer(text: str) -> NoReturn:
    """End this fork with its answer."""
    os.write(_ANSWER[0], text.encode()[:4000])
    os._exit(0)


# Where this fork's answer goes, and what one begins with that never came back.
_ANSWER: list[int] = []
_HUNG = "hung in "


def _first_failing(trials: Iterable[Trial], limit_s: float) -> str:
    """The name of the first that fails, from the quickest on, as long as there is time."""
    until = time.process_time() + limit_s
    for trial in sorted(trials, key=lambda trial: trial.took_s):
        if time.process_time() > until:
            return ""
        try:
            with _limited(trial):
                if not trial.passes():
                    return trial.name
        except BaseException:  # noqa: BLE001  # a mutant may raise anything, also in fixtures
            return trial.name
    return ""


class _EndlessError(BaseException):
    """Not an Exception, which the code under test might catch."""


@contextmanager
def _limited(trial: Trial) -> Iterator[None]:
    """Raise an error in a loop without end; give up where something waits forever."""

    def endless(*_: object) -> None:
        raise _EndlessError

    def hung(*_: object) -> None:
        _answer(_HUNG + trial.name)

    signal.signal(signal.SIGVTALRM, endless)
    signal.signal(signal.SIGALRM, hung)
    longer_s = ENDLESS_TIMES * trial.took_s
    signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS_S + longer_s, 1.0)
    signal.setitimer(signal.ITIMER_REAL, HUNG_S + longer_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _holds(seed: int) -> bool:
    """Whether everything holds in a history."""
    try:
        history(drawn(seed))
    except AssertionError:
        return False
    return True


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
