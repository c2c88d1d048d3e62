"""Finds and removes files that no kept snapshot refers to, and folders of dropped tables.

Promises: only folders that a lake writer made are touched, never a foreign table's; a file goes
only if the current metadata of its table doesn't lead to it, and it is older than any write that
may still become part of a cut. The service also waits that long after it has first seen a file
without a reference: a reader may still have it open.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import orjson
from pyiceberg.manifest import ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from headrace.lake.catalog import Catalog
from headrace.lake.files import LakeFiles, LakeIO, canonical
from headrace.lake.tables import SOURCE_PROPERTY

UNUSED_KIND = "unused-folder"
# As `LakeWriter` names a table's folder.
_TABLE_FOLDER = re.compile(r"[A-Za-z0-9_-]*/[A-Za-z0-9_-]*-[0-9a-f]{16}")
_METADATA = ".metadata.json"
_DATA = re.compile(r"data/[0-9a-f-]{36}(-deletes)?\.parquet")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Unused:
    """A file that nothing refers to."""

    location: str
    size: int


@dataclass(frozen=True, slots=True)
class UnusedFolder:
    """A folder of a dropped table, or of a copy that was given up, and since when it is known."""

    location: str
    size: int
    files: int
    since: float


@dataclass(slots=True)
class FirstSeen:
    """When each unused file was first seen without a reference, for as long as it is."""

    times: dict[str, float] = field(default_factory=dict)

    def ripe(self, found: list[Unused], below: str, now: float, grace_s: float) -> list[Unused]:
        """Those of a folder's unused files that are known for the grace time."""
        prefix = f"{below}/"
        here = {each.location for each in found}
        for location in [known for known in self.times if known.startswith(prefix)]:
            if location not in here:
                del self.times[location]
        return [
            each for each in found if self.times.setdefault(each.location, now) <= now - grace_s
        ]


def is_table_folder(files: LakeFiles, location: str) -> bool:
    """Whether a location is a folder as the lake's writers make them."""
    prefix = f"{files.root}/"
    return (
        location.startswith(prefix)
        and _TABLE_FOLDER.fullmatch(location.removeprefix(prefix)) is not None
    )


def referenced(io: LakeIO, location: str) -> set[str]:
    """Every file that a table's current metadata leads to, as the store lists it."""
    metadata = FromInputFile.table_metadata(io.new_input(location))
    found = {location}
    found.update(entry.metadata_file for entry in metadata.metadata_log)
    found.update(each.statistics_path for each in metadata.statistics)
    found.update(each.statistics_path for each in metadata.partition_statistics)
    for snapshot in metadata.snapshots:
        if not snapshot.manifest_list:
            continue
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            # Snapshots share most of their manifests.
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                found.update(_files_of(io, manifest))
    return {canonical(name) for name in found}


def _files_of(io: LakeIO, manifest: ManifestFile) -> tuple[str, ...]:
    entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
    return tuple(entry.data_file.file_path for entry in entries)


def unused_files(files: LakeFiles, location: str, before: float) -> list[Unused]:
    """The files of a table that were last changed before a time and that nothing refers to."""
    io = LakeIO(files)
    # Listed first: a file that is found here is either referred to by now, or never will be.
    folder = folder_of(location)
    if not is_table_folder(files, folder):
        return []
    listed = [item for item in files.walk(folder) if item[2] < before]
    used = referenced(io, location)
    return [Unused(name, size) for name, size, _ in listed if name not in used]


def folder_of(metadata_location: str) -> str:
    """The table's folder by the location of its metadata."""
    return canonical(metadata_location).rpartition("/metadata/")[0]


def unused_folders(
    files: LakeFiles, catalog: Catalog, source: str, before: float, clock: Clock = time.time
) -> list[UnusedFolder]:
    """Folders of a source's tables that the catalog doesn't have any more; notes since when."""
    noted = catalog.notes(source, UNUSED_KIND)
    current = {folder_of(location) for location in catalog.tables().values()}
    found = [
        folder
        for folder in _table_folders(files)
        if folder not in current and _made_for(files, folder, source, before)
    ]
    for gone in noted.keys() - set(found):
        catalog.note(source, UNUSED_KIND, gone, None)
    for folder in found:
        if folder not in noted:
            catalog.note(source, UNUSED_KIND, folder, orjson.dumps({"since": clock()}).decode())
    noted = catalog.notes(source, UNUSED_KIND)
    return [_described(files, folder, noted) for folder in found]


def _described(files: LakeFiles, folder: str, noted: Mapping[str, str]) -> UnusedFolder:
    sizes = [size for _, size, _ in files.walk(folder)]
    return UnusedFolder(folder, sum(sizes), len(sizes), orjson.loads(noted[folder])["since"])


def _table_folders(files: LakeFiles) -> Iterator[str]:
    for namespace in files.folders():
        for folder in files.folders(namespace):
            if is_table_folder(files, folder):
                yield folder


def _made_for(files: LakeFiles, folder: str, source: str, before: float) -> bool:
    """Whether a folder is a table's of this source, or contains only files of a copy that no cut
    ever had; nobody writes to it any more.
    """
    listed = list(files.walk(folder))
    if not listed or any(at >= before for _, _, at in listed):
        return False
    metadata = [(at, name) for name, _, at in listed if name.endswith(_METADATA)]
    if metadata:
        _, newest = max(metadata)
        table: TableMetadata = FromInputFile.table_metadata(LakeIO(files).new_input(newest))
        return table.location == folder and table.properties.get(SOURCE_PROPERTY) == source
    return all(_DATA.fullmatch(name[len(folder) + 1 :]) for name, _, _ in listed)


def remove_folder(files: LakeFiles, catalog: Catalog, source: str, folder: UnusedFolder) -> None:
    """Remove a folder that was found unused, its metadata last: until then it can be found."""
    assert is_table_folder(files, folder.location), "found by `unused_folders`"
    names = [name for name, _, _ in files.walk(folder.location)]
    files.delete(sorted(names, key=lambda name: name.endswith(_METADATA)))
    catalog.note(source, UNUSED_KIND, folder.location, None)
