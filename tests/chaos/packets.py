"""Packets lost below TCP, and a slow line: in a network that only this process and its children
use.

It needs the right to create a network (root, on Linux, with `ip` and `iptables`); otherwise only
the proxies' faults run. TCP sends lost packets again, or gives up: this module closes no
connection.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

_NEWNET = 0x40000000
_RULE = ("iptables", "-w", "60")
_LOSS = ("-m", "statistic", "--mode", "random", "--probability")


def enter_own_network() -> bool:
    """Whether this process has its network to itself from now on; call it before anything listens or
    connects.
    """
    if (
        sys.platform != "linux"
        or os.geteuid() != 0
        or not (shutil.which("ip") and shutil.which("iptables"))
    ):
        return False
    if ctypes.CDLL(None, use_errno=True).unshare(_NEWNET) != 0:
        return False
    _run("ip", "link", "set", "lo", "up")
    return _try(*_RULE, "-A", "INPUT", "-p", "tcp", *_LOSS, "0.0", "-j", "DROP")


def lose(port: int, ratio: float) -> None:
    """Drop this share of the packets of every connection to this port, in both directions."""
    for side in ("--dport", "--sport"):
        _run(*_RULE, "-A", "INPUT", *_lost(side, port, ratio))


def deliver(port: int, ratio: float) -> None:
    """Undo `lose`."""
    for side in ("--dport", "--sport"):
        _run(*_RULE, "-D", "INPUT", *_lost(side, port, ratio))


def swallow(port: int, *, from_server: bool) -> None:
    """Drop every packet in one direction: connections stand, and nothing arrives that way."""
    _run(*_RULE, "-A", "INPUT", *_swallowed(port, from_server))


def let_through(port: int, *, from_server: bool) -> None:
    """Undo `swallow`."""
    _run(*_RULE, "-D", "INPUT", *_swallowed(port, from_server))


def narrow(mbit_per_s: int) -> bool:
    """All traffic through one slow line with a short queue: late, and lost where the queue is full."""
    rate = ("rate", f"{mbit_per_s}mbit", "burst", "128kb", "latency", "300ms")
    return _try("tc", "qdisc", "replace", "dev", "lo", "root", "tbf", *rate)


def widen() -> None:
    """Undo `narrow`."""
    _try("tc", "qdisc", "del", "dev", "lo", "root")


def _lost(side: str, port: int, ratio: float) -> tuple[str, ...]:
    return ("-p", "tcp", side, str(port), *_LOSS, f"{ratio:.2f}", "-j", "DROP")


def _swallowed(port: int, from_server: bool) -> tuple[str, ...]:
    return ("-p", "tcp", "--sport" if from_server else "--dport", str(port), "-j", "DROP")


def _run(*command: str) -> None:
    subprocess.run(
        [shutil.which(command[0]) or command[0], *command[1:]], check=True, capture_output=True
    )


def _try(*command: str) -> bool:
    try:
        _run(*command)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
