"""How far the archive is complete beyond its last file, as the archiver notes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def mark_key(source: str) -> str:
    """The key of a source's mark in the state bucket."""
    return f"archive.{source}"


@dataclass(frozen=True, slots=True)
class ArchiveMark:
    """How far the log contained no change since this file; and that this file existed."""

    archive: str
    file: int
    lsn: int
    url: str

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> ArchiveMark:
        known = value or {}
        return cls(
            known.get("archive", ""),
            known.get("file", 0),
            known.get("lsn", 0),
            known.get("url", ""),
        )

    def encode(self) -> dict[str, Any]:
        return {"archive": self.archive, "file": self.file, "lsn": self.lsn, "url": self.url}
