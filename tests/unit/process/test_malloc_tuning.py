"""A service keeps a little of the memory that it frees, and no more than a little."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from headrace.process.malloc_tuning import KEPT_BYTES

PIECE_BYTES, ROUNDS = 512 * 1024, 50
FAULTS = """
import resource, sys
from headrace.process.malloc_tuning import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("not glibc")
pieces, size, rounds = map(int, sys.argv[2:])
def work():
    held = [bytes(size) + b"x" for _ in range(pieces)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(rounds):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt"
)


def faults(how: str, pieces: int) -> int:
    arguments = [how, str(pieces), str(PIECE_BYTES), str(ROUNDS)]
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, *arguments], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_frames_that_come_and_go_cost_no_page_faults() -> None:
    assert faults("kept", 10) * 10 < faults("default", 10)


def test_what_a_crowd_of_frames_took_goes_back() -> None:
    crowd = 4 * KEPT_BYTES // PIECE_BYTES
    assert faults("kept", crowd) * 2 > faults("default", crowd)
