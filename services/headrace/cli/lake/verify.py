"""`headrace lake verify`: compares a lake with its source, both as of one LSN.

Exits with 0 if all tables are equal, 3 if one is not, 1 if that could not be determined. Shows keys
of rows that differ, never other values.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cli.lake.listing import show
from headrace.cli.lake.selection import Lake, NoLakeError
from headrace.cli.mirror.verify import EXIT_DIFFERENT, body_of, text_of
from headrace.cli.terminal import Console
from headrace.contract.table_patterns import table_of
from headrace.errors import SettingError
from headrace.lake.catalog import TableName
from headrace.verify.lake import LakeVerdict, LakeVerifier


async def verify(lake: Lake, tables: Sequence[str], wait_s: float, *, as_json: bool) -> int:
    """Compare tables, all by default; returns the exit code."""
    if lake.settings.archive.url is None:
        raise SettingError(
            "HEADRACE_ARCHIVE_URL is not set",
            remedy="Set it: the archive shows which rows change while they are compared.",
        )
    # Not those of other suites in the same catalog: their source is another one.
    names = [TableName(*table_of(table)) for table in tables] or list(lake.own_tables())
    if not names:
        raise NoLakeError(f"the lake has no tables of {lake.slot}")
    verifier = LakeVerifier(lake.settings, lake.files, lake.catalog, wait_s)
    equal = True
    for name in names:
        found = await verifier.table(name)
        equal = equal and found.verdict.equal
        _tell(found, as_json=as_json)
    return 0 if equal else EXIT_DIFFERENT


def _tell(found: LakeVerdict, *, as_json: bool) -> None:
    if as_json:
        show({**body_of(found.verdict), "cut": found.cut, "rows_moving": found.moving})
        return
    text = text_of(found.verdict)
    if found.moving:
        text.append(f"\n    {found.moving:,} changed meanwhile and were not compared", style="dim")
    Console(soft_wrap=True).print(text)
