"""The PostgreSQL server that a target's marks belong to, as one of the marks.

A position means something else on another server. A new database with the slot's name, and a target
that is still there from the former one, would otherwise lose every change up to the stored position
silently.
"""

from __future__ import annotations

from collections.abc import Mapping

from nats.js.kv import KeyValue

from headrace.consumer import Watermark
from headrace.jetstream.state import Cell
from headrace.sinks.port import SinkAwayError, SinkError

# A lane with a slash has no position in the stream.
_LANE = "system/"


class OtherSourceError(SinkError):
    """The target's marks belong to another PostgreSQL server."""

    remedy = (
        "Their positions mean nothing here. Use another sink name or an empty target, or run "
        "`headrace sinks reset NAME --to snapshot` to continue in this target with new copies."
    )


class SourceUnknownError(SinkAwayError):
    """The publisher has not stored which server it reads."""

    remedy = "Start the publisher and the wal-reader: the sink continues once they have started."


def named_system(marks: Mapping[str, Watermark]) -> str:
    """The system identifier of the server that the marks belong to; empty if they don't say."""
    return next(
        (lane.removeprefix(_LANE) for lane in marks if lane.startswith(_LANE)),
        "",
    )


def name_system(marks: dict[str, Watermark], system_id: str) -> None:
    """Let the next commit store it with the marks."""
    # In the lane's name, because a mark itself has numbers only.
    marks[_LANE + system_id] = Watermark()


async def system_of(state: KeyValue, source: str) -> str:
    """The system identifier that the publisher stored; empty before it has started."""
    progress = await Cell(state, f"progress.{source}").read()
    return str((progress or {}).get("system_id", ""))


def check(marks: Mapping[str, Watermark], system_id: str) -> None:
    """Raise an error unless the marks belong to this server, or don't say."""
    known = named_system(marks)
    # Watermarks of an older version name no server; the next commit adds the name.
    if not known or known == system_id:
        return
    if not system_id:
        raise SourceUnknownError("the publisher has not stored which PostgreSQL server it reads")
    raise OtherSourceError(
        f"the target's position belongs to the PostgreSQL server {known}, and the stream to "
        f"{system_id}"
    )
