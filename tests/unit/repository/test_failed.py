"""A failed test's leak is not blamed on the tests after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "support"
# The socket is part of a cycle, which only the garbage collector ends.
TESTS = """
import gc, socket

class Connection:
    def __init__(self):
        self.socket, self.itself = socket.socket(), self

def used():
    connection = Connection()
    raise ConnectionError("refused")

def test_first():
    try:
        used()
    except ConnectionError as error:
        if {fails}:
            raise RuntimeError("the failure") from error

def test_second():
    gc.collect()
"""


def outcomes(folder: Path, *plugins: str, fails: bool) -> str:
    (folder / "test_it.py").write_text(TESTS.format(fails=fails))
    (folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )
    options = [option for plugin in plugins for option in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*command, "-rA", "-q", "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_a_failed_tests_leak_fails_no_other_test(tmp_path: Path) -> None:
    without = outcomes(tmp_path, fails=True)
    assert "FAILED test_it.py::test_first" in without
    assert "FAILED test_it.py::test_second" in without
    with_it = outcomes(tmp_path, "failed", fails=True)
    assert "FAILED test_it.py::test_first" in with_it
    assert "PASSED test_it.py::test_second" in with_it


def test_a_leak_of_a_test_that_passed_is_still_reported(tmp_path: Path) -> None:
    assert "unclosed <socket" in outcomes(tmp_path, "failed", fails=False)
