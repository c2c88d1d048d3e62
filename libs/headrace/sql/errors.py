"""The errors of SQL over the lake."""

from __future__ import annotations

from headrace.errors import HeadraceError


class NotProvenEqualError(HeadraceError):
    """A statement needs something that is not proven to give PostgreSQL's answer."""

    # feature_not_supported
    sqlstate = "0A000"

    def __init__(self, feature: str, hint: str = "") -> None:
        super().__init__(f"{feature} is not supported over the lake", remedy=hint)
        self.feature = feature
        self.hint = hint
