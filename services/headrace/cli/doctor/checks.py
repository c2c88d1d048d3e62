"""The result of a `headrace doctor` check, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SKEW_S_MAX = 2.0


class CheckState(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's table."""

    group: str
    name: str
    state: CheckState
    found: str
    remedy: str = ""


@dataclass(slots=True)
class Findings:
    """The checks of one group, in order."""

    group: str
    checks: list[Check]

    def ok(self, name: str, found: str) -> None:
        self.checks.append(Check(self.group, name, CheckState.OK, found))

    def warn(self, name: str, found: str, remedy: str) -> None:
        self.checks.append(Check(self.group, name, CheckState.WARN, found, remedy))

    def fail(self, name: str, found: str, remedy: str) -> None:
        self.checks.append(Check(self.group, name, CheckState.FAIL, found, remedy))

    def unread(self, name: str, module: str, extra: str) -> None:
        """Report a store that can't be read without an optional package. This is no failure: the
        service that uses the store may run in another image.
        """
        remedy = f"pip install 'headrace[{extra}]', or run doctor in the image of that service."
        self.warn(name, f"can't be read without {module}, which is not installed", remedy)

    def judge(self, name: str, found: str, remedy: str, *, good: bool) -> None:
        """Passed, or failed with a remedy."""
        if good:
            self.ok(name, found)
        else:
            self.fail(name, found, remedy)

    def skew(self, seconds: float) -> None:
        """The difference between the server's clock and this one."""
        if abs(seconds) <= SKEW_S_MAX:
            self.ok("clock", f"{abs(seconds) * 1000:.0f} ms apart")
        else:
            self.warn(
                "clock",
                f"{abs(seconds):.1f} s apart",
                "Run a time service (chrony) on both machines.",
            )
