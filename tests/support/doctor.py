"""`headrace doctor`, as a test reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.testing.process import command


async def checks(settings: Mapping[str, str]) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and each check by its name."""
    # A crowded machine takes long to import all that it examines.
    outcome = await command(settings, "doctor", "--json", timeout_s=240)
    assert outcome.out, outcome.err
    return outcome.code, {check["name"]: check for check in json.loads(outcome.out)["checks"]}


async def states(settings: Mapping[str, str], group: str) -> dict[str, str]:
    """The states of a group's checks by name."""
    _, found = await checks(settings)
    return {name: check["state"] for name, check in found.items() if check["group"] == group}
