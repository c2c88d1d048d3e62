"""`headrace up` shows a fact about its services once, not at each of their attempts."""

from __future__ import annotations

import pytest

from headrace.cli.up.view import View
from headrace.supervisor.line import parse

WAITS = 'time=2026-01-01T00:00:00.000Z level=warning service=x event=not_ready part=nats reason="{reason}"'


def test_what_keeps_a_service_waiting_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = View(verbose=False)
    view.quiet = False
    for reason in ("away", "away", "back", "away"):
        view.line("publisher", parse(WAITS.format(reason=reason)))
    view.line("wal-reader", parse(WAITS.format(reason="away")))
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[-1]) for line in told] == [
        ("publisher", "away"),
        ("publisher", "back"),
        ("wal-reader", "away"),
    ]
