"""Every internal subject of NATS core. Pure.

The subjects of changes, schemas and snapshots, which consumers rely on, are in
`headrace.contract.subjects_and_ids`.
"""

from __future__ import annotations

import re
from functools import partial


def _of_slot(name: str, slot: str) -> str:
    return f"headrace.{slot}.{name}"


# From the wal-reader to its confirmers.
frames = partial(_of_slot, "frames")
# From the confirmers to the wal-reader.
control = partial(_of_slot, "control")
# To all services: stop in order.
stop = partial(_of_slot, "stop")
# To the publisher: read again whether it is paused.
pause = partial(_of_slot, "pause")
# From `headrace doctor` to itself, to prove its rights.
doctor = partial(_of_slot, "doctor")


def stats(slot: str, service: str) -> str:
    """From a service to telemetry. `*` are all but the sinks, and `sink-*` are these."""
    # A sink's name is a separate token, so that a NATS user can be allowed to report as any sink
    # and as nothing else.
    token = re.sub(r"^sink-", "sink.", service)
    return f"headrace.{slot}.stats.{token}"


def reporting_service(subject: str) -> str:
    """The service whose report has this subject."""
    return subject.split(".", 3)[3].replace(".", "-")


def chunk_permits(slot: str, snapshot_id: str) -> str:
    """From the tasks of a snapshot to its responder."""
    return f"headrace.{slot}.snapshot.{snapshot_id}"


def turns(stream: str) -> str:
    """Among the publishers of one stream."""
    return f"headrace.{stream}.turns"


def hold(mirror: str) -> str:
    """From `headrace verify` to a mirror: stand still at an LSN."""
    return f"headrace.mirror.{mirror}.hold"
