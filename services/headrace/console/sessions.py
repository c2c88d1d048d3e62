"""Sessions of signed-in browsers, in memory: a restart signs everyone out.

A session's cookie is random and says nothing. Sessions, and failed attempts, are bounded.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass, field

from headrace.console.access import Caller
from headrace.console.problem import ProblemError

COOKIE = "headrace_session"
SESSION_S = 12 * 3600
SESSIONS_MAX = 1_000
ATTEMPTS_MAX = 10
ATTEMPTS_S = 60.0
ADDRESSES_MAX = 10_000


@dataclass(slots=True)
class Sessions:
    _held: dict[str, tuple[Caller, float]] = field(default_factory=dict)
    _failed: dict[str, deque[float]] = field(default_factory=dict)

    def begin(self, caller: Caller) -> str:
        """A new session's cookie."""
        if len(self._held) >= SESSIONS_MAX:
            # Insertion order: the oldest goes.
            del self._held[next(iter(self._held))]
        # Never derived from the token: a stolen cookie must not reveal it.
        name = secrets.token_urlsafe(32)
        self._held[name] = (caller, time.monotonic() + SESSION_S)
        return name

    def caller(self, name: str) -> Caller | None:
        """The caller of this session, if it has not ended."""
        held = self._held.get(name)
        if held is None:
            return None
        caller, until = held
        if time.monotonic() > until:
            del self._held[name]
            return None
        return caller

    def end(self, name: str) -> None:
        self._held.pop(name, None)

    def check_attempts(self, address: str) -> None:
        """Raise if there were too many failed attempts from here."""
        failed = self._failed.get(address)
        while failed and time.monotonic() - failed[0] > ATTEMPTS_S:
            failed.popleft()
        if failed and len(failed) >= ATTEMPTS_MAX:
            raise ProblemError(
                429, "busy", "There were too many attempts to sign in.", "Wait for a minute."
            )

    def note_failure(self, address: str) -> None:
        if len(self._failed) >= ADDRESSES_MAX:
            # One client may have many addresses, and memory without bounds would be worse.
            self._failed.clear()
        self._failed.setdefault(address, deque(maxlen=ATTEMPTS_MAX)).append(time.monotonic())
