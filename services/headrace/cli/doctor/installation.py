"""Checks of this installation, which is usually the services' own."""

from __future__ import annotations

import platform

from headrace.accelerator import native
from headrace.cli.doctor.checks import Findings


def examine() -> Findings:
    """Which Python runs, and whether with functions in C. No finding is a failure."""
    findings = Findings("Installation", [])
    findings.ok("Python", platform.python_version())
    found = "on" if native is not None else "off, or not built: everything runs in Python"
    findings.ok("accelerator", found)
    return findings
