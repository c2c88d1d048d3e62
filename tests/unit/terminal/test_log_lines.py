"""A log line is an event with fields, in one of two forms, and warnings and errors are counted at
any log level.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import orjson
import pytest

from headrace import log as logs
from headrace.log import LogFormat
from headrace.supervisor.line import parse


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The process's logging is pytest's."""
    root, ours = logging.getLogger(), logging.getLogger("headrace")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def written(form: LogFormat, level: str = "info") -> list[str]:
    out = io.StringIO()
    logs.configure("publisher", level=level, form=form, stream=out)
    log = logs.logger("publisher")
    log.info("lsn_confirmed", lsn="0/1", seconds=0.5)
    log.warning("not_ready", part="bus", reason='a "quoted" reason\nof two lines')
    logging.getLogger("some.library").warning("its own words")
    return out.getvalue().splitlines()


def test_json_lines_have_the_event_its_fields_and_their_types() -> None:
    first, second, third = map(orjson.loads, written(LogFormat.JSON))
    assert (first["event"], first["service"], first["level"]) == (
        "lsn_confirmed",
        "publisher",
        "info",
    )
    assert (first["lsn"], first["seconds"]) == ("0/1", 0.5)
    assert second["reason"] == 'a "quoted" reason\nof two lines'
    assert third["event"] == "its own words"


def test_logfmt_is_one_line_for_an_event_and_reads_back() -> None:
    lines = written(LogFormat.LOGFMT)
    assert len(lines) == 3
    read = parse(lines[1])
    assert (read.level, read.event) == ("warning", "not_ready")
    assert read.fields == {"part": "bus", "reason": 'a "quoted" reason\nof two lines'}


def test_grave_events_are_counted_by_name_and_part_also_where_they_are_not_shown() -> None:
    before = logs.told.get("warning not_ready_bus", 0)
    lines = written(LogFormat.LOGFMT, level="error")
    assert lines == ["time=" + lines[0].split("=", 1)[1]]
    assert "its own words" in lines[0]
    assert logs.told["warning not_ready_bus"] == before + 1
