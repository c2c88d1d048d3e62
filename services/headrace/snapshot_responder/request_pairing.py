"""Matches the two views of one request: the message with a reply subject, and its stored copy.

The work queue keeps a request but not its reply subject, unless a header names it; the core
subscription sees the reply subject but can't tell whether the request was stored. Equal requests
are interchangeable, so views are paired in order, by subject and payload. An outcome without its
view, or the reverse, waits `patience_s` and no longer. Pure.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

_REPLY_CHARS_MAX = 512
_NO_INBOXES = frozenset({"cdc", "init", "snapshot", "headrace"})
_TOKEN = re.compile(r"[^$*>\s\x00-\x1f\x7f][^*>\s\x00-\x1f\x7f]*")

Outcome = TypeVar("Outcome")
View = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """The immediate answer to a request."""

    snapshot_id: str
    status: str
    reason: str | None = None

    def body(self) -> dict[str, Any]:
        return {"snapshot_id": self.snapshot_id, "status": self.status, "reason": self.reason}

    def to_a_late_view(self) -> Answer:
        """For a reply subject that is seen after its outcome.

        The outcome may be an equal request's, whose snapshot is older than the stream's end that
        this request noted.
        """
        if self.status == "accepted":
            return replace(self, status="joined")
        return self


@dataclass(slots=True)
class Pairing(Generic[Outcome]):
    """Reply subjects (empty if no answer is wanted) and outcomes that wait for each other."""

    patience_s: float
    _replies: dict[View, deque[tuple[float, str]]] = field(default_factory=dict)
    _outcomes: dict[View, deque[tuple[float, Outcome]]] = field(default_factory=dict)

    def seen(self, view: View, reply: str, now: float) -> Outcome | None:
        """A request arrived by the core subscription; returns its outcome, if that is known
        already.
        """
        waiting = self._outcomes.get(view)
        if waiting:
            return _pop(self._outcomes, view)
        self._replies.setdefault(view, deque()).append((now, reply))
        return None

    def decided(self, view: View, outcome: Outcome, now: float, *, keep: bool = True) -> str | None:
        """A stored request was processed; returns its reply subject, if that is known already.

        Without `keep` the outcome does not wait for a view that may have been sent before we
        subscribed.
        """
        if self._replies.get(view):
            return _pop(self._replies, view)
        if keep:
            self._outcomes.setdefault(view, deque()).append((now, outcome))
        return None

    def expire(self, now: float) -> list[tuple[View, str]]:
        """Drop what waited too long; returns reply subjects of requests never stored."""
        # Outcomes that no view claimed: the request was sent before we subscribed, or its view was
        # lost.
        list(_expired(self._outcomes, now - self.patience_s))
        return [
            (view, reply) for view, reply in _expired(self._replies, now - self.patience_s) if reply
        ]


Item = TypeVar("Item")


def _pop(queues: dict[View, deque[tuple[float, Item]]], view: View) -> Item:
    queue = queues[view]
    _, item = queue.popleft()
    if not queue:
        del queues[view]
    return item


def _expired(
    queues: dict[View, deque[tuple[float, Item]]], before: float
) -> Iterator[tuple[View, Item]]:
    for view in list(queues):
        while view in queues and queues[view][0][0] < before:
            yield view, _pop(queues, view)


def may_be_told(reply: str) -> bool:
    """Whether an answer may be sent there: to an inbox, never into a stream of the suite or the
    server's own subjects.
    """
    tokens = reply.split(".")
    return (
        len(reply) <= _REPLY_CHARS_MAX
        and tokens[0] not in _NO_INBOXES
        and all(map(_TOKEN.fullmatch, tokens))
    )
