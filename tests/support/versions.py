"""The versions of PostgreSQL that a test runs on."""

from __future__ import annotations

import pytest

# The fixture `version` is the newest one where a test names none.
on_both_versions = pytest.mark.parametrize("version", [16, 18])
