"""Which tests CI may skip, and why: every other skipped test fails the run there.

A test that is skipped without anybody noticing protects nothing. With `CI=true` the run ends as
failed, and names each skipped test whose reason is not on the list.
"""

from __future__ import annotations

import os
import re

import pytest

# The reason as the test gives it, and why CI may go without the test.
ALLOWED = {
    r"versitygw is not installed, and Go is not there": "Debian has neither versitygw nor a Go that can build it",
    r"(go|mvn) is not installed, which": "CI need not have Go or Maven",
    r"the accelerator needs a C compiler and Python's headers": "CI need not have them, and everything runs in Python then",
    r"only root runs PostgreSQL as another user": "CI need not be root",
    r"the C library has no mallopt": "musl has none, and the code under test does nothing there",
}


class SkipsInCi:
    """Watches a run, the workers' reports included."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look(report.nodeid, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look(report.nodeid, report)

    def _look(self, test: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(allowed, reason) for allowed in ALLOWED):
            self.refused[test] = reason

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skipped, which CI may not (tests/skips.py)", red=True)
        for test, reason in sorted(self.refused.items()):
            terminalreporter.line(f"SKIPPED IN CI {test}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """In CI, on the process that judges the run."""
    if os.environ.get("CI") == "true" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipsInCi(), "skips-in-ci")
