"""What can go wrong with an archive, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.archive.layout import described
from headrace.errors import HeadraceError


class ArchiveError(HeadraceError):
    """The archive can't be used as it is."""


class ArchiveUnreachableError(ArchiveError):
    """The object store does not answer, or refuses."""

    retry = True
    remedy = "Check the archive's URL, the store's credentials (AWS_*, GOOGLE_*, AZURE_*) and that it can be reached."


class StoreFullError(ArchiveUnreachableError):
    """There is no room for another file."""

    remedy = (
        "Make room on the disk, or raise its quota; or remove old files (`headrace archive gc`, "
        "HEADRACE_ARCHIVE_KEEP_S). The archiver tries again."
    )


class FileTakenError(ArchiveError):
    """Another archiver has written the file with this id."""

    retry = True


class StoreUnfitError(ArchiveError):
    """The store lets one writer overwrite what another has written."""

    remedy = (
        "Use a store with conditional puts (If-None-Match), or a version of this one that has them."
    )


class WalFileCollectedError(ArchiveError):
    """The file was there once, and was removed by garbage collection; or the archive begins behind
    the place.
    """

    remedy = (
        "Go on with the first file that is left (`list`), and load what it lacks from a snapshot."
    )


class WalFileMissingError(ArchiveError):
    """The file should be there and is not, and garbage collection did not remove it."""

    remedy = "Run `headrace archive verify`; restore the file from a copy of the store, or begin after it."


class WalFileCorruptError(ArchiveError):
    """A file of the archive does not hold what it says."""

    remedy = "Run `headrace archive verify`; restore the file from a copy of the store."


class WalGapError(ArchiveError):
    """The archive tells of changes that it does not have."""

    remedy = (
        "Take a snapshot of the tables that matter, or read on and be told of it: "
        "raise_at_gap=False, gaps=tell in "
        "Spark, --past-gaps with replay."
    )


@contextmanager
def naming(file_id: int) -> Iterator[None]:
    """Errors about a file's bytes say which file it is."""
    try:
        yield
    except WalFileCorruptError as error:
        message = f"{described(file_id)}: {error.args[0]}"
        raise WalFileCorruptError(message, remedy=error.remedy) from error
