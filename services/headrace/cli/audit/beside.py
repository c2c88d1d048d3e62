"""Whether `headrace audit up` has a slot and a stream of its own, or follows the stream of a suite
that is there.

Promises: a slot or publication that only a suite's environment names is never used for a trail of
its own: it is the suite's. Where both can't be had, the error says what to run instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nats.js.errors import NotFoundError

from headrace.cli.session import nats, postgres
from headrace.errors import HeadraceError
from headrace.jetstream.connection import shown
from headrace.settings import Settings, load

NAME = "headrace_audit"
STREAM = "AUDIT"
# Of the suite whose environment this may be.
_A_SUITES = ("HEADRACE_SLOT", "HEADRACE_PUB", "HEADRACE_ARCHIVE_URL")
_SLOT = "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1 AND database = current_database()"


class BesideError(HeadraceError):
    """A suite delivers to this NATS, and the trail can't be attached to it."""


@dataclass(frozen=True, slots=True)
class RunningSuite:
    """A suite that is there, which the trail follows as one more consumer."""

    slot: str
    stream: str


def without_a_suites(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what belongs to a suite: SLOT_NAME and PUBLICATION_NAME name the
    trail's own.
    """
    return {name: value for name, value in environ.items() if name not in _A_SUITES}


async def suite_beside(given: Mapping[str, str], environ: Mapping[str, str]) -> RunningSuite | None:
    """The suite that delivers to the named NATS; None where the trail has, or may make, a stream of
    its own.

    `given` is the environment with Bemi's and Zemi's variables under the suite's names.
    """
    settings = load(given)
    own_slot = environ.get("SLOT_NAME")
    stream = await _stream(settings)
    if stream is None or stream == STREAM:
        return None
    if stream == given.get("HEADRACE_STREAM") and await _has_slot(settings, own_slot or NAME):
        # One that an earlier `audit up` made, under a name that was asked for.
        return None
    slot = settings.source.slot
    there = f"a suite delivers to {shown(settings.nats)} already, into the stream {stream}"
    if own_slot and own_slot != environ.get("HEADRACE_SLOT", own_slot):
        raise BesideError(
            f"{there}: a trail of a slot of its own needs a NATS of its own",
            remedy=(
                "Unset SLOT_NAME to follow that suite, or unset NATS_URL (and NATS_HOST): a "
                "nats-server is started."
            ),
        )
    if not await _has_slot(settings, slot):
        raise BesideError(
            f"{there}, but its slot {slot} is not in database {settings.postgres.database}",
            remedy="Use the environment of that suite (`. .headrace/env`), or unset NATS_URL (and "
            "NATS_HOST): "
            "a nats-server is started.",
        )
    return RunningSuite(slot, stream)


async def _stream(settings: Settings) -> str | None:
    """The stream that takes change events on this NATS."""
    async with nats(settings, "audit") as (client, _):
        try:
            return str(await client.jetstream().find_stream_name_by_subject("cdc.>"))
        except NotFoundError:
            return None


async def _has_slot(settings: Settings, slot: str) -> bool:
    async with postgres(settings, "audit") as session:
        return bool(await session.fetchval(_SLOT, slot))
