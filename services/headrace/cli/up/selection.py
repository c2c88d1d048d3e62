"""Which suites one `headrace up` runs: a slot and a publication for each, and whether they fit
together.

Promises: suites that can't run together cause one error before a slot is created or a service
starts. Suites share the streams, so no table may be in two of their publications: it would be
delivered twice, under one subject.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.audit.settings import load_audit
from headrace.cli.session import postgres
from headrace.errors import HeadraceError, SettingError
from headrace.postgres import slot_reader
from headrace.postgres.slot_reader import SlotReader
from headrace.settings import Settings

_ALL_TABLES = (
    "SELECT pubname FROM pg_publication WHERE puballtables AND pubname = ANY($1) ORDER BY 1"
)
# The view expands publications of all tables as well; `_ALL_TABLES` refuses these first.
_SHARED = """
SELECT schemaname || '.' || tablename AS name, array_agg(pubname::text ORDER BY pubname) AS pubs
FROM pg_publication_tables WHERE pubname = ANY($1) GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 3
"""
_KNOWN = "SELECT pubname::text FROM pg_publication WHERE pubname = ANY($1)"
SLOT_WAIT_S = 10.0
_LOOK_S = 0.2
_OVERLAP_REMEDY = (
    "Let each name different tables: DROP PUBLICATION …, then CREATE PUBLICATION … FOR TABLE …."
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A suite from the command line; the environment provides what is None."""

    slot: str | None = None
    pub: str | None = None

    def environment(self) -> dict[str, str]:
        given = {"HEADRACE_SLOT": self.slot, "HEADRACE_PUB": self.pub}
        return {name: value for name, value in given.items() if value is not None}


def paired(slots: Sequence[str], pubs: Sequence[str]) -> tuple[Chosen, ...]:
    """A suite for each `--slot` with the corresponding `--pub`."""
    # The environment may provide one of each; which of several belong together is not guessed.
    if len(slots) < 2 and len(pubs) < 2:
        return (Chosen(next(iter(slots), None), next(iter(pubs), None)),)
    if len(slots) != len(pubs):
        raise SettingError(
            f"--slot is given {_times(slots)}, --pub {_times(pubs)}",
            remedy=(
                "Several suites need both options for each: --slot a --pub p1 --slot b --pub p2."
            ),
        )
    for option, names, why in (
        ("--slot", slots, "A slot has one reader, so give each suite its own slot."),
        (
            "--pub",
            pubs,
            (
                "Its changes would be delivered twice, so give each suite a publication of other "
                "tables."
            ),
        ),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise SettingError(f"{option} {twice} is given twice", remedy=why)
    return tuple(Chosen(slot, pub) for slot, pub in zip(slots, pubs, strict=True))


def _times(names: Sequence[str]) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(len(names), f"{len(names)} times")


def check_together(suites: Sequence[Chosen], environ: Mapping[str, str]) -> None:
    """Raise if the environment requests something that several suites can't do."""
    if len(suites) > 1 and load_audit(environ).enabled:
        raise SettingError(
            "HEADRACE_AUDIT=true works with one suite only: two trails would number one table",
            remedy="Unset it, and run `headrace audit up` in another folder.",
        )


class SlotInUseError(HeadraceError):
    """Another process reads the slot."""

    remedy = (
        "A slot has one reader. Use that suite, stop it, or name another slot and "
        "publication: --slot, --pub."
    )


async def require_free_slot(settings: Settings) -> None:
    """Raise if the slot has a lasting reader; a killed one releases it within moments."""
    async with postgres(settings, "up") as session:
        deadline = time.monotonic() + SLOT_WAIT_S
        while reader := await session.fetchrow(f"{slot_reader.QUERY}$1", settings.source.slot):
            if time.monotonic() > deadline:
                raise SlotInUseError(
                    f"replication slot {settings.source.slot} is read by {SlotReader.of(reader)}"
                )
            await asyncio.sleep(_LOOK_S)


async def is_published(settings: Settings) -> bool:
    """Whether the suite's publication exists."""
    async with postgres(settings, "up") as session:
        return bool(await session.fetch(_KNOWN, [settings.source.publication]))


async def require_disjoint(suites: Sequence[Settings], *, existing: bool) -> None:
    """Raise if a table is in two publications, or a publication includes all tables, or one is
    missing.
    """
    pubs = [settings.source.publication for settings in suites]
    async with postgres(suites[0], "up") as session:
        known = {row["pubname"] for row in await session.fetch(_KNOWN, pubs)}
        missing = [pub for pub in pubs if pub not in known]
        if existing and missing:
            raise SettingError(
                (
                    f"publication {missing[0]} does not exist, and several suites can't each "
                    "include all tables"
                ),
                remedy=f"Create it: CREATE PUBLICATION {missing[0]} FOR TABLE ….",
            )
        # First: such a publication shares every table, so the error below would name any of them.
        whole = await session.fetchval(_ALL_TABLES, pubs)
        if whole is not None:
            raise SettingError(
                f"publication {whole} includes all tables, so nothing is left for another suite",
                remedy=_OVERLAP_REMEDY,
            )
        shared = await session.fetch(_SHARED, pubs)
    if shared:
        raise SettingError(
            f"table {shared[0]['name']} is in the publications {' and '.join(shared[0]['pubs'])}",
            remedy=_OVERLAP_REMEDY,
        )
