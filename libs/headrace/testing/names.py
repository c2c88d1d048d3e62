"""Names for one test, so that tests share servers without meeting."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

_count = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Names:
    """One test's own names, each valid where it is used; `unique` is part of all of them."""

    unique: str

    @classmethod
    def new(cls) -> Names:
        """Return names no other test has, in this process or in one that runs beside it."""
        return cls(f"t{os.getpid()}_{next(_count)}")

    @property
    def slot(self) -> str:
        """A replication slot."""
        return f"slot_{self.unique}"

    @property
    def publication(self) -> str:
        """A PostgreSQL publication."""
        return f"pub_{self.unique}"

    @property
    def stream(self) -> str:
        """A JetStream stream."""
        return f"STREAM_{self.unique}"

    @property
    def subject(self) -> str:
        """A subject's first token."""
        return f"subject_{self.unique}"

    @property
    def bucket(self) -> str:
        """A key-value bucket."""
        return f"bucket_{self.unique}"

    def other(self, kind: str) -> str:
        """Return a name for anything else, or a second one of a kind."""
        return f"{kind}_{self.unique}"
