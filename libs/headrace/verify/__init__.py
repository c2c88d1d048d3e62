"""Proves that a mirror is equal to its source: both at one LSN, while both change.

    verdict = await Verifier(settings, client, target).table("users")

Only `cli` may import it. It never writes to the source, and to the target only for a repair.
"""

from headrace.verify.check import NoMirrorError, NotThereError, Patience, Verdict, Verifier
from headrace.verify.digest import Difference, RowFault

__all__ = [
    "Difference",
    "NoMirrorError",
    "NotThereError",
    "Patience",
    "RowFault",
    "Verdict",
    "Verifier",
]
