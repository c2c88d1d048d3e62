"""CI accepts only the skipped tests that tests/skips.py allows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


def run(folder: Path, reason: str, ci: str) -> subprocess.CompletedProcess[str]:
    """Run a separate pytest on one test that is skipped for this reason."""
    (folder / "test_it.py").write_text(
        f"import pytest\n\ndef test_it():\n    pytest.skip({reason!r})\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "skips",
        "-p",
        "no:cacheprovider",
        "test_it.py",
    ]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(TESTS)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_skipped_test_fails_the_run_in_ci_and_is_named_with_its_reason(tmp_path: Path) -> None:
    done = run(tmp_path, "no browser here", ci="true")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "test_it.py::test_it: Skipped: no browser here" in done.stdout


def test_a_skip_with_a_reason_on_the_list_passes_in_ci(tmp_path: Path) -> None:
    assert run(tmp_path, "the C library has no mallopt", ci="true").returncode == pytest.ExitCode.OK


def test_outside_ci_a_test_may_be_skipped(tmp_path: Path) -> None:
    assert run(tmp_path, "no browser here", ci="").returncode == pytest.ExitCode.OK
