"""A sink's marks as JSON, for targets that store them next to the data.

The stream's identity is stored with them: sequences of another stream mean nothing, while positions
in the source's log stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from headrace.consumer.watermark import Watermark
from headrace.lsn import Position
from headrace.sinks.port import SEEN, SinkError


def marks_to_json(marks: Mapping[str, Watermark], stream: str, **more: object) -> bytes:
    """All marks, and the stream that they belong to; `more` is for the target."""
    body = {lane: [*mark.position, mark.stream_seq] for lane, mark in marks.items()}
    return orjson.dumps({"stream": stream, "marks": body, **more})


def marks_from_json(stored: bytes, stream: str) -> dict[str, Watermark]:
    """The stored marks; of another stream, only the positions in sources."""
    try:
        body = orjson.loads(stored)
        same = body["stream"] == stream
        marks = {
            lane: Watermark(Position(lsn, seq), stream_seq if same else 0)
            for lane, (lsn, seq, stream_seq) in body["marks"].items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise SinkError(
            "The target's position record was not written by this version",
            remedy="Give the sink another name, or `headrace sinks reset` it.",
        ) from error
    if not same:
        marks.pop(SEEN, None)
    return marks
