"""Names for one test, so that tests can share servers."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

_count = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Names:
    """Names that no other test uses, each valid for its purpose."""

    # A part of all of them.
    unique: str

    @classmethod
    def new(cls) -> Names:
        """Return names that no other test has, in this process or in a parallel one."""
        return cls(f"t{os.getpid()}_{next(_count)}")

    @property
    def slot(self) -> str:
        """The name of a replication slot."""
        return f"slot_{self.unique}"

    @property
    def publication(self) -> str:
        """The name of a PostgreSQL publication."""
        return f"pub_{self.unique}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of services that use this slot and publication."""
        return {"HEADRACE_SLOT": self.slot, "HEADRACE_PUB": self.publication}

    @property
    def stream(self) -> str:
        """The name of a JetStream stream."""
        return f"STREAM_{self.unique}"

    @property
    def subject(self) -> str:
        """The first token of a subject."""
        return f"subject_{self.unique}"

    @property
    def bucket(self) -> str:
        """The name of a key-value bucket."""
        return f"bucket_{self.unique}"

    def other(self, kind: str) -> str:
        """Return a name of another kind, such as `other("db")`."""
        return f"{kind}_{self.unique}"
