"""Every internal subject of NATS core. Pure.

The subjects of changes, schemas and snapshots, which consumers rely on, are in
`headrace.contract.naming`.
"""

from __future__ import annotations


def frames(slot: str) -> str:
    """From the wal-reader to its confirmers."""
    return f"headrace.{slot}.frames"


def control(slot: str) -> str:
    """From the confirmers to the wal-reader."""
    return f"headrace.{slot}.control"


def stats(slot: str, service: str) -> str:
    """From a service to telemetry."""
    return f"headrace.{slot}.stats.{service}"


def stop(slot: str) -> str:
    """To all services: stop in order."""
    return f"headrace.{slot}.stop"


def pause(slot: str) -> str:
    """To the publisher: read again whether it is paused."""
    return f"headrace.{slot}.pause"


def doctor(slot: str) -> str:
    """From `headrace doctor` to itself, to prove its rights."""
    return f"headrace.{slot}.doctor"


def chunk_permits(slot: str, snapshot_id: str) -> str:
    """From the tasks of a snapshot to its responder."""
    return f"headrace.{slot}.snapshot.{snapshot_id}"


def turns(stream: str) -> str:
    """Among the publishers of one stream."""
    return f"headrace.{stream}.turns"


def hold(mirror: str) -> str:
    """From `headrace verify` to a mirror: stand still at an LSN."""
    return f"headrace.mirror.{mirror}.hold"
