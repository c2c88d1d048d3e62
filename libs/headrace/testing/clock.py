"""Moves the wall clock of another process; no other process and no monotonic clock is affected.

Works on any program, Go's too, which no preloaded library reaches: a program asks for the time in
the vDSO, code that the kernel maps into each process, and that code is replaced in the process.
Only Linux on x86-64, and only processes that this user may trace. A process that is started again
has the machine's clock.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError

_STOP_TIMEOUT_S = 30.0
_SECTION, _SYMBOL, _DYNSYM = "<IIQQQQIIQQ", "<IBBHQQ", 11
# `mov rcx, offset`; the offset is its last eight bytes.
_MOV_RCX, _OFFSET = b"\x48\xb9", bytes(8)
# int clock_gettime(clock, timespec *): system call 228; the seconds are moved if it went well, for
# CLOCK_REALTIME (0).
_CLOCK_GETTIME = (
    b"\xb8\xe4\0\0\0\x0f\x05\x85\xff\x75\x11\x85\xc0\x75\x0d"
    + _MOV_RCX
    + _OFFSET
    + b"\x48\x01\x0e\xc3"
)
# int gettimeofday(timeval *, timezone *): system call 96; the first may be null.
_GETTIMEOFDAY = (
    b"\xb8\x60\0\0\0\x0f\x05\x48\x85\xff\x74\x0d" + _MOV_RCX + _OFFSET + b"\x48\x01\x0f\xc3"
)
# time_t time(time_t *): system call 201; the argument may be null.
_TIME = (
    b"\xb8\xc9\0\0\0\x0f\x05"
    + _MOV_RCX
    + _OFFSET
    + b"\x48\x01\xc8\x48\x85\xff\x74\x03\x48\x89\x07\xc3"
)
_REPLACED = {
    "__vdso_clock_gettime": _CLOCK_GETTIME,
    "__vdso_gettimeofday": _GETTIMEOFDAY,
    "__vdso_time": _TIME,
}
_JUMP = b"\xe9"


class ClockUnmovableError(HeadraceError):
    """The process's clock can't be moved."""


@functools.cache
def can_move_clocks() -> bool:
    """Whether this machine lets us: a kernel may forbid to write into another process.

    Any other failure is raised: a test that is skipped over it would hide that clocks stay.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    command = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        # Before it runs its program, its memory is another program's.
        assert child.stdout is not None
        child.stdout.readline()
        move_clock(child.pid, 0)
    except PermissionError:
        return False
    finally:
        child.kill()
        child.communicate()
    return True


def move_clock(pid: int, offset_s: int) -> None:
    """From now on this process's wall clock differs from the machine's by so many seconds."""
    image = _image(pid)
    with _halted(pid, image), _memory(pid) as memory:
        at = image.room
        for name, code in _REPLACED.items():
            entry = image.symbols[name]
            if image.data[entry : entry + 1] != _JUMP:
                os.pwrite(memory, code, image.at + at)
                os.pwrite(memory, _JUMP + struct.pack("<i", at - entry - 5), image.at + entry)
            os.pwrite(
                memory,
                struct.pack("<q", offset_s),
                image.at + at + code.index(_MOV_RCX) + len(_MOV_RCX),
            )
            at += 64


@dataclass(frozen=True, slots=True)
class _Image:
    """The vDSO of a process: where it is, how it was when it was read, its functions, and where
    there is room.
    """

    at: int
    data: bytes
    symbols: dict[str, int]
    room: int


def _image(pid: int) -> _Image:
    mapped = next(
        (
            line
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if line.endswith("[vdso]")
        ),
        "",
    )
    if not mapped:
        raise ClockUnmovableError(f"process {pid} has no vDSO")
    start, end = (int(edge, 16) for edge in mapped.split()[0].split("-"))
    with _memory(pid) as memory:
        data = os.pread(memory, end - start, start)
    (table_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    # Its tables stand at the end of the ELF; what the kernel maps behind them is empty.
    room = -(-(table_at + size * count) // 64) * 64
    sections = [
        struct.unpack_from(_SECTION, data, table_at + number * size) for number in range(count)
    ]
    symbols = _symbols(data, sections)
    if room + 64 * len(_REPLACED) > len(data) or not _REPLACED.keys() <= symbols.keys():
        raise ClockUnmovableError("this kernel's vDSO is not as expected")
    return _Image(start, data, symbols, room)


def _symbols(data: bytes, sections: list[tuple[int, ...]]) -> dict[str, int]:
    dynsym = next(section for section in sections if section[1] == _DYNSYM)
    names_at = sections[dynsym[6]][4]
    found: dict[str, int] = {}
    for at in range(dynsym[4], dynsym[4] + dynsym[5], struct.calcsize(_SYMBOL)):
        name, _, _, _, value, _ = struct.unpack_from(_SYMBOL, data, at)
        found[data[names_at + name : data.index(b"\0", names_at + name)].decode()] = value
    return found


@contextlib.contextmanager
def _memory(pid: int) -> Iterator[int]:
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _halted(pid: int, image: _Image) -> Iterator[None]:
    """Stopped, and none of its threads in the code that is about to change."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    os.kill(pid, signal.SIGSTOP)
    try:
        while not _outside(pid, image):
            if time.monotonic() > deadline:
                raise ClockUnmovableError(f"process {pid} does not stop outside of the vDSO")
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.001)
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _outside(pid: int, image: _Image) -> bool:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        where = _where(thread)
        if where is None or image.at <= where < image.at + len(image.data):
            return False
    return True


def _where(thread: Path) -> int | None:
    """The address at which a thread was halted; None if it does not halt.

    On a busy machine it is halted only when it gets its turn, so that may take long: a SIGCONT
    before that would withdraw the SIGSTOP.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            said = (thread / "syscall").read_text().split()
        except OSError:
            # It ended.
            return 0
        if said != ["running"]:
            # Of these numbers the last is the address.
            return int(said[-1], 16)
        time.sleep(0.001)
    return None
