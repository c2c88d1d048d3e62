"""The files from which the session's time zones are read."""

from __future__ import annotations

import zoneinfo
from pathlib import Path

from headrace.sql.value_forms.zones import zone


def read_zones_of(folder: Path) -> None:
    """Take zones from PostgreSQL's own files, in this process: another edition of the time zone
    database has other offsets, of the past and of the future. A PostgreSQL without such a folder
    uses the system's files, as Python does.
    """
    if not folder.is_dir():
        return
    others = [each for each in zoneinfo.TZPATH if each != str(folder)]
    zoneinfo.reset_tzpath([str(folder), *others])
    zoneinfo.ZoneInfo.clear_cache()
    zone.cache_clear()
