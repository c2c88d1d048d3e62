"""A service's line, as the supervisor takes it apart."""

from __future__ import annotations

import io
import logging

import pytest

from headrace import log as logs
from headrace.supervisor.line import parse


@pytest.mark.parametrize("form", list(logs.LogFormat))
def test_what_the_suite_logs_is_understood_in_both_forms(form: logs.LogFormat) -> None:
    root, headrace = logging.getLogger(), logging.getLogger("headrace")
    kept = root.handlers[:], root.level, headrace.level
    out = io.StringIO()
    try:
        logs.configure("publisher", level="info", form=form, stream=out)
        logs.logger("test").error(
            "service_failed", error="X", reason='publication "a b" is missing. Run `init`'
        )
    finally:
        root.handlers[:] = kept[0]
        root.setLevel(kept[1])
        headrace.setLevel(kept[2])
    line = parse(out.getvalue())
    assert (line.level, line.event, line.grave) == ("error", "service_failed", True)
    assert line.failure == 'publication "a b" is missing. Run `init`'
    assert line.summary == 'service_failed error=X: publication "a b" is missing. Run `init`'


def test_a_coloured_line_is_read_without_its_colours() -> None:
    line = parse(
        "\x1b[33mtime=2026-01-01T00:00:00.000Z level=warning service=publisher event=not_ready "
        "part=nats\x1b[0m\n"
    )
    assert (line.level, line.summary) == ("warning", "not_ready part=nats")


@pytest.mark.parametrize(
    "text",
    [
        "METRICS uptime=15 wal_messages=2",
        '{"level": "error"',
        "[1, 2]",
        "{}",
        "time=x level=",
        "",
        "Traceback (most",
    ],
)
def test_what_is_no_log_line_is_kept_and_never_grave(text: str) -> None:
    line = parse(text)
    assert (line.text, line.grave, line.summary) == (text, False, text)


def test_only_the_line_that_ends_a_service_tells_a_failure() -> None:
    line = parse('time=x level=warning service=publisher event=not_ready reason="no server"')
    assert line.failure == ""
    assert line.grave
