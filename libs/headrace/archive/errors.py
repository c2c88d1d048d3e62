"""Errors of an archive, and what to do about them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.archive.layout import described
from headrace.errors import HeadraceError


class ArchiveError(HeadraceError):
    """The archive can't be used in its current state."""


class ArchiveUnreachableError(ArchiveError):
    """The object store does not answer, or refuses the request."""

    retry = True
    remedy = (
        "Check the archive's URL, the store's credentials (AWS_*, GOOGLE_*, AZURE_*) and the "
        "network."
    )


class StoreFullError(ArchiveUnreachableError):
    """The store has no space for another file."""

    remedy = (
        "Free disk space, or raise the quota, or remove old files (`headrace archive gc`, "
        "HEADRACE_ARCHIVE_KEEP_S). The archiver tries again."
    )


class FileTakenError(ArchiveError):
    """Another archiver has written the file with this id."""

    retry = True


class StoreUnfitError(ArchiveError):
    """The store lets one writer overwrite another's object."""

    remedy = (
        "Use a store with conditional puts (If-None-Match), or a version of this one that "
        "supports them."
    )


class WalFileCollectedError(ArchiveError):
    """The file was removed by garbage collection, or the archive starts after this position."""

    remedy = (
        "Continue with the first available file (`list`), and load what it lacks from a snapshot."
    )


class WalFileMissingError(ArchiveError):
    """The file is missing, and garbage collection did not remove it."""

    remedy = (
        "Run `headrace archive verify`; restore the file from a copy of the store, or start "
        "after it."
    )


class WalFileCorruptError(ArchiveError):
    """A file of the archive is damaged or inconsistent."""

    remedy = "Run `headrace archive verify`; restore the file from a copy of the store."


class WalGapError(ArchiveError):
    """The archive records a gap: changes that it does not contain."""

    remedy = (
        "Take a snapshot of the tables that matter, or continue and handle gaps yourself: "
        "raise_at_gap=False, gaps=tell in Spark, --past-gaps with replay."
    )


class BaseDamagedError(ArchiveError):
    """A base snapshot is damaged."""

    remedy = (
        "Take another one (`headrace archive base now`), and remove this one (`headrace archive "
        "base rm`)."
    )


class BaseMissingError(ArchiveError):
    """A base snapshot, or a part of it, was removed."""

    remedy = "Run the command again: it uses the bases that exist now."


@contextmanager
def naming(file_id: int) -> Iterator[None]:
    """Errors about a file's bytes name the file."""
    try:
        yield
    except WalFileCorruptError as error:
        message = f"{described(file_id)}: {error.args[0]}"
        raise WalFileCorruptError(message, remedy=error.remedy) from error
