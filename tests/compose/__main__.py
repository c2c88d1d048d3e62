"""`./taskw test:compose`: `compose.yaml`, unchanged, under a real Docker engine.

The engine has its own network, mounts and processes, so that its bridges, its firewall and the
published ports don't affect the machine. They end with this process, however it ends. The packages,
Compose and the engine's images stay in the user's cache.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.embedded.process import tied
from headrace.errors import HeadraceError
from headrace.testing.fetched import cached
from tests.compose.engine import CGROUP, Parts
from tests.compose.packages import compose_program, engine_folder

_FOLDER = Path(__file__).parent
_ROOT = _FOLDER.parents[1]
GROUPS_TIMEOUT_S = 10.0


class NoEngineError(HeadraceError):
    """An engine can't run on this machine."""

    remedy = "Run it as root on Debian 12, with Go; a container needs a privileged one's rights."


def _check_machine() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NoEngineError("Only root on Linux may start an engine")
    missing = [
        name
        for name in ("apt-get", "dpkg-deb", "unshare", "nsenter", "ip", "curl")
        if shutil.which(name) is None
    ]
    if missing:
        raise NoEngineError(f"The engine needs {', '.join(missing)}, which is not installed")
    if not Path("/dev/net/tun").exists():
        raise NoEngineError("The engine's network needs /dev/net/tun, which does not exist")


def _run(arguments: list[str]) -> int:
    parts = Parts(
        tools=engine_folder(),
        compose=compose_program(),
        data=cached("docker-data", lambda _: None),
        host_network=os.open("/proc/self/ns/net", os.O_RDONLY),
        host_mounts=os.open("/proc/self/ns/mnt", os.O_RDONLY),
    )
    own = [
        str(shutil.which("unshare")),
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    # The first process of a PID namespace must take in orphans.
    first: list[str | Path] = [parts.tools / "usr/bin/tini-static", "-s", "--"]
    tests: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-s",
        "-v",
        "-n",
        "0",
        "--timeout",
        "0",
    ]
    with _alone(parts.data):
        process = subprocess.Popen(
            tied([*own, *first, *tests, _FOLDER, *arguments], signal.SIGKILL),
            cwd=_ROOT,
            env={**os.environ, **parts.environ()},
            pass_fds=(parts.host_network, parts.host_mounts),
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The tests have it too, and end what they started.
            return process.wait()
        finally:
            process.kill()
            process.wait()
            _remove_control_groups()


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Two engines must not share their data."""
    with (data / "in-use").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NoEngineError(
                f"Another run uses the engine's data in {data}",
                remedy="Wait until it has ended, or set XDG_CACHE_HOME to another folder.",
            ) from error
        yield


def _clean() -> None:
    data = cached("docker-data", lambda _: None)
    with _alone(data):
        shutil.rmtree(data)
    shutil.rmtree(cached("docker-engine-bookworm", lambda _: None))


def _remove_control_groups() -> None:
    """Remove what a killed engine leaves in the kernel; an empty group costs little, but stays.

    Its processes end a moment after the first one of their namespace.
    """
    groups = Path("/sys/fs/cgroup")
    deadline = time.monotonic() + GROUPS_TIMEOUT_S
    while time.monotonic() < deadline:
        tops = [top for top in (groups / CGROUP, *groups.glob(f"*/{CGROUP}")) if top.exists()]
        if not tops:
            return
        for top in tops:
            for group in (*sorted(top.rglob("*/"), reverse=True), top):
                with contextlib.suppress(OSError):
                    group.rmdir()
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./taskw test:compose --", description=__doc__, epilog="Other arguments: pytest's."
    )
    parser.add_argument(
        "--clean", action="store_true", help="remove the engine's images and packages, then end"
    )
    chosen, arguments = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if chosen.clean:
            _clean()
            return 0
        _check_machine()
        return _run(arguments)
    except HeadraceError as error:
        print(f"test:compose: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
