"""The options of `headrace restore`, without the packages that a restore needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RestoreMoment:
    """The options; at most one is given."""

    at: str | None = None
    lsn: str | None = None
    xid: int | None = None
    before_xid: int | None = None
    before_drop: bool = False

    @property
    def given(self) -> int:
        """How many moments are named."""
        options = (self.at, self.lsn, self.xid, self.before_xid)
        return sum(one is not None for one in options) + self.before_drop


@dataclass(frozen=True, slots=True)
class RowsWanted:
    """The options about rows."""

    replace: bool
    where: str | None
    # Whether rows that were inserted since the moment go.
    discard_later: bool
    # Without a question.
    yes: bool

    @property
    def given(self) -> bool:
        """Whether rows of a live table are to be changed."""
        return self.replace or self.where is not None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options."""

    to: Path | None
    table: str | None
    moment: RestoreMoment
    into: str
    name: str | None
    rows: RowsWanted
    timeline: int | None
    tablespaces: tuple[str, ...]
    work: Path | None
    plan_only: bool
    drill: bool
