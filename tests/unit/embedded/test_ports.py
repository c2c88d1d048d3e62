"""Ports of embedded servers: whom they are given to."""

from __future__ import annotations

import subprocess
import sys

from headrace.embedded.ports import free_port

_PICK = """
import os, sys
from headrace.embedded.ports import free_port
print(*(free_port() for _ in range(100)), flush=True)
{fork}
sys.stdin.read()
"""
_FORKED = """
if os.fork() == 0:
    print(*(free_port() for _ in range(100)), flush=True)
    os._exit(0)
os.wait()
"""


def _picked(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(port) for port in process.stdout.readline().split()]


def test_processes_that_run_at_the_same_time_never_pick_the_same_port() -> None:
    program = [sys.executable, "-c", _PICK.format(fork="")]
    processes = [
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        picked = [port for process in processes for port in _picked(process)]
        own = [free_port() for _ in range(100)]
    finally:
        for process in processes:
            process.communicate()
    assert len(set(picked) | set(own)) == 500


def test_a_forked_process_does_not_pick_its_parents_ports() -> None:
    program = [sys.executable, "-c", _PICK.format(fork=_FORKED)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        picked = _picked(process) + _picked(process)
        process.communicate()
    assert len(set(picked)) == 200


def test_a_process_is_not_given_the_same_port_twice_in_a_row() -> None:
    assert len({free_port() for _ in range(100)}) == 100
