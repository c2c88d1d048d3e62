"""Decides whether `headrace audit up` needs its own slot and stream, or follows an existing suite.

Promises: a slot or publication that only a suite's environment names is never used for a separate
trail: it belongs to the suite. If both can't be combined, the error says what to run instead.
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
# Variables of the suite whose environment this may be.
_A_SUITES = ("HEADRACE_SLOT", "HEADRACE_PUB", "HEADRACE_ARCHIVE_URL")
# The view lists the slots of every database of the server.
_SLOT = "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1 AND database = current_database()"


class AttachError(HeadraceError):
    """A suite delivers to this NATS, and the trail can't be attached to it."""


@dataclass(frozen=True, slots=True)
class RunningSuite:
    """An existing suite, which the trail follows as one more consumer."""

    slot: str
    stream: str


def without_a_suites(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without a suite's variables: SLOT_NAME and PUBLICATION_NAME name the trail's
    own objects.
    """
    return {name: value for name, value in environ.items() if name not in _A_SUITES}


async def suite_beside(given: Mapping[str, str], environ: Mapping[str, str]) -> RunningSuite | None:
    """The suite that delivers to the named NATS; None if the trail has, or may create, a separate
    stream.

    `given` is the environment with Bemi's and Zemi's variables under the suite's names.
    """
    settings = load(given)
    own_slot = environ.get("SLOT_NAME")
    stream = await _stream(settings)
    # Nobody delivers here, or an earlier run of this command.
    if stream is None or stream == STREAM:
        return None
    if stream == given.get("HEADRACE_STREAM") and await _has_slot(settings, own_slot or NAME):
        # Created by an earlier `audit up`, under a requested name.
        return None
    slot = settings.source.slot
    there = f"a suite already delivers to {shown(settings.nats)}, into the stream {stream}"
    # Another slot than the suite's would need another stream, but its subjects are taken.
    if own_slot and own_slot != environ.get("HEADRACE_SLOT", own_slot):
        raise AttachError(
            f"{there}: a trail with its own slot needs a separate NATS",
            remedy=(
                "Unset SLOT_NAME to follow that suite, or unset NATS_URL (and NATS_HOST) to "
                "start a nats-server."
            ),
        )
    # A NATS may serve a suite of another database, whose changes are not these.
    if not await _has_slot(settings, slot):
        raise AttachError(
            f"{there}, but its slot {slot} is not in database {settings.postgres.database}",
            remedy=(
                "Use the environment of that suite (`. .headrace/env`), or unset NATS_URL "
                "(and NATS_HOST) to start a nats-server."
            ),
        )
    return RunningSuite(slot, stream)


async def _stream(settings: Settings) -> str | None:
    """The stream of change events on this NATS."""
    async with nats(settings, "audit") as (client, _):
        try:
            return str(await client.jetstream().find_stream_name_by_subject("cdc.>"))
        except NotFoundError:
            return None


async def _has_slot(settings: Settings, slot: str) -> bool:
    async with postgres(settings, "audit") as session:
        return bool(await session.fetchval(_SLOT, slot))
