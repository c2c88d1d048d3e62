"""Errors of a backup store and of a restore, and what to do about them. Pure."""

from __future__ import annotations

from headrace.errors import HeadraceError


class BackupError(HeadraceError):
    """The backup store or a backup can't be used in its current state."""


class BackupStoreError(BackupError):
    """The store does not answer, or refuses the request."""

    retry = True
    remedy = (
        "Check HEADRACE_BACKUP_URL, the store's credentials (AWS_*, GOOGLE_*, AZURE_*) and the "
        "network."
    )


class BackupStoreFullError(BackupStoreError):
    """The store has no space for another object."""

    remedy = (
        "Free space or raise the quota of HEADRACE_BACKUP_URL, or remove old backups (`headrace "
        "backup expire`). Until then PostgreSQL retains the log."
    )


class NoBackupStoreError(BackupError):
    """No store was created here."""

    retry = True
    remedy = "Check HEADRACE_BACKUP_URL, or create the store with `headrace backup init`."


class ForeignStoreError(BackupError):
    """The store belongs to another cluster, or to another life of this one."""

    remedy = (
        "Name a new, empty location in HEADRACE_BACKUP_URL and run `headrace backup init`; nothing "
        "was written."
    )


class TakenError(BackupError):
    """An object of this name exists."""


class DivergedError(BackupError):
    """The server's log differs from what the store contains under the same name."""

    remedy = (
        "The server is older than its backup store, or another one: name a new location in "
        "HEADRACE_BACKUP_URL and run `headrace backup init`; nothing was overwritten."
    )


class DamagedError(BackupError):
    """An object of the store is not what was written."""

    remedy = "Restore the object from a copy of the store, or take a new backup (`backup now`)."


class ObjectMissingError(DamagedError):
    """An object that was listed is missing."""


class LogHoleError(BackupError):
    """A part of the log is missing in the store."""

    remedy = "Take a new backup (`headrace backup now`): moments after it can be restored again."


class NoSuchMomentError(BackupError):
    """The store can't bring the cluster to this moment."""

    remedy = "`headrace backup ls` shows the moments that can be restored."


class RestoreError(BackupError):
    """A restore did not reach its moment."""
