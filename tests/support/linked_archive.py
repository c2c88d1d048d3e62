"""An archive of which a reader sees only what is linked: many files appear at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LinkedArchive:
    """A folder of links to the files of an archive's folder."""

    archive: Path
    folder: Path

    @property
    def url(self) -> str:
        """Where a reader finds the links."""
        return f"file://{self.folder}"

    def link(self) -> None:
        """Show all files of the archive, the first one last, so that they appear together."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known = {path.name for path in self.folder.glob("*.parquet")}
        for path in sorted(self.archive.glob("[0-9]*.parquet"), reverse=True):
            if path.name not in known:
                (self.folder / path.name).hardlink_to(path)

    async def follow(self) -> None:
        """Show every file soon after it was written, until cancelled."""
        while True:
            self.link()
            await asyncio.sleep(0.05)
