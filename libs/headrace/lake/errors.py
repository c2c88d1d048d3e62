"""The errors of a lake."""

from __future__ import annotations

from headrace.errors import HeadraceError


class LakeError(HeadraceError):
    """The lake can't be read or written."""


class LakeUnreachableError(LakeError):
    """The lake's files or its catalog don't answer; trying again may help."""

    retry = True
    remedy = "Check the lake's URL, its credentials and the network."


class CutRefusedError(LakeError):
    """Another process has made this cut: nothing of it was written."""

    retry = True


class UnownedTableError(LakeError):
    """A table in the lake's place was not made by this lake."""
