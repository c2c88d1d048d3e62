"""One server's process: started, watched until ready, stopped within a deadline, killed like a
crash.

It promises that the server dies with this process, however it dies; that the terminal's Ctrl-C
doesn't reach it, so that the caller decides the order of the shutdown; and that two servers never
serve one folder. It is blocking and belongs to no event loop. It knows nothing about any kind of
server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from headrace.embedded.account import Account
from headrace.errors import HeadraceError

_LAUNCH_SCRIPT = Path(__file__).with_name("launch.py")
_LOG_BYTES_MAX = 16 * 1024 * 1024
_TAIL_BYTES_MAX = 8 * 1024
_TAIL_LINES = 15
_PROBE_INTERVAL_S = 0.01
# The time that the children of a killed server may take to end.
_ORPHANS_TIMEOUT_S = 10.0


class ServerStartError(HeadraceError):
    """An embedded server didn't become ready."""

    remedy = "Correct what it says there and start again."


class PortTakenError(ServerStartError):
    """Another program listens on the port that an embedded server was given."""

    retry = True
    remedy = "Name another port, or stop the program that uses this one."


class AlreadyServedError(HeadraceError):
    """A running server already serves this folder."""

    remedy = "Use that server, stop it first, or name another folder."


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: the command, its environment, and the signal that ends it when the parent
    dies.
    """

    command: Sequence[str | Path]
    log: Path
    death_signal: signal.Signals
    account: Account | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopStep:
    """A signal, and how long to wait for the end before the next step."""

    signal: signal.Signals
    wait_s: float


@cache
def _spawner(_pid: int) -> ThreadPoolExecutor:
    """Return the thread that starts servers: the kernel's "parent" is a thread, so it must live as
    long as we do.

    By pid, because a fork leaves the thread behind.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedded-spawner")


def tied(
    command: Sequence[str | Path], death_signal: signal.Signals, account: Account | None = None
) -> list[str]:
    """Return a command that ends with the thread that starts it, and runs under the account, if one
    is named.
    """
    if account is None:
        identity = ("-1", "-1")
    else:
        identity = (str(account.uid), str(account.gid))
    # Isolated and without site-packages: the account may not be able to read the virtual
    # environment.
    prefix = [
        sys.executable,
        "-I",
        "-S",
        str(_LAUNCH_SCRIPT),
        str(os.getpid()),
        str(int(death_signal)),
    ]
    return [*prefix, *identity, *map(str, command)]


def spawn(launch: Launch, *, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start the command in its own session, with its output appended to the log."""
    command = tied(launch.command, launch.death_signal, launch.account)

    def start() -> subprocess.Popen[bytes]:
        with launch.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The account may not be able to enter the caller's folder.
                cwd="/",
                env=dict(launch.environment),
                # The terminal sends Ctrl-C to its own session only.
                start_new_session=True,
                # The folder's lock, which is held for as long as a process of the server has it
                # open.
                pass_fds=pass_fds,
            )

    return _spawner(os.getpid()).submit(start).result()


def ended_by(status: int) -> str:
    """An exit status in words; negative for a signal."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"status {status}"


def run_to_end(launch: Launch, *, timeout_s: float) -> int:
    """Run a command that ends on its own, such as initdb, and return its exit status."""
    with spawn(launch) as process:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            # The `with` waits for the end, which only a kill ensures.
            process.kill()
            raise


class ServerProcess:
    """A server that serves one folder, from its start to its end."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._lock_path = folder / "lock"
        self._log: Path | None = None
        # The size of the log before the server was started: its own lines come after.
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._process is None:
            raise ServerStartError(f"{self._name} is not running", remedy="Start it first.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server was started and hasn't ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def ending(self) -> str:
        """The way it ended; empty while it runs, if it was never started, or if it was stopped."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return ""
        return ended_by(status)

    def workers(self, home: Path) -> list[int]:
        """The processes in the server's folder that hold the lock: the server, or what is left of
        one.
        """
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            # Other users' processes are invisible, and some end while they are inspected.
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "cwd").resolve(strict=True) == home:
                    files = [handle.resolve() for handle in (entry / "fd").iterdir()]
                    # A shell may have this folder as its working directory: only the inherited lock
                    # is proof.
                    found += [int(entry.name)] if self._lock_path in files else []
        return found

    def refuse_if_served(self) -> None:
        """Raise if a running server serves the folder."""
        with self._locked():
            pass

    def start(
        self, launch: Launch, *, port: int, ready: Callable[[], bool], timeout_s: float
    ) -> None:
        """Start the server and return when it is ready; if it isn't in time, end it and raise with
        its log.
        """
        self._log = launch.log
        self._log_start = _rotated_size(launch.log)
        with self._locked() as lock:
            self._process = spawn(launch, pass_fds=[lock])
            # For the message of another process that finds the folder locked.
            os.pwrite(lock, f"{self._process.pid} {port}\n".encode(), 0)
        try:
            self._await_ready(ready, port, timeout_s)
        except BaseException:
            # Also when interrupted: a server that nobody knows would keep the folder.
            self.kill()
            raise

    def stop(self, steps: Sequence[StopStep]) -> None:
        """Ask the server to stop, step by step, and kill it if no step was enough."""
        for step in steps:
            if not self.running:
                break
            assert self._process is not None
            self._process.send_signal(step.signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(step.wait_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL the server and all its children, like a machine failure, and wait until they are
        gone.
        """
        if self._process is None:
            return
        if self._process.poll() is None:
            # Stopped first, so that it starts no more children. One may have been on its way: hence
            # the second look.
            self._process.send_signal(signal.SIGSTOP)
            for _ in range(2):
                kill_all(_children(self._process.pid))
            self._process.kill()
        self._process.wait()
        self._process = None

    def tail(self) -> str:
        """Return the last lines the server wrote to its log since it was started."""
        if self._log is None or not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            log.seek(max(self._log_start, size - _TAIL_BYTES_MAX))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def _await_ready(self, ready: Callable[[], bool], port: int, timeout_s: float) -> None:
        """Extend the time of a server that logs progress: killed in its recovery, it would start
        over.
        """
        assert self._log is not None, "it was started"
        said = 0
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise self._ended(port)
            size = self._log.stat().st_size
            now = time.monotonic()
            if size != said:
                said = size
                deadline = now + timeout_s
            if now > deadline:
                raise ServerStartError(
                    f"{self._name} was not ready, and logged nothing for {timeout_s:g} s: "
                    f"{self._quoted_tail()}"
                )
            time.sleep(_PROBE_INTERVAL_S)

    def _ended(self, port: int) -> ServerStartError:
        tail = self.tail()
        # Both servers log the kernel's words, and neither has an exit status for it.
        if "address already in use" in tail.lower():
            return PortTakenError(
                f"{self._name} can't listen on port {port}: {self._quoted_tail()}"
            )
        assert self._process is not None
        status = self._process.returncode
        return ServerStartError(
            f"{self._name} ended with status {status} at startup: {self._quoted_tail()}"
        )

    def _quoted_tail(self) -> str:
        return f"its log ends\n{self.tail()}\nThat is the end of {self._log}"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the folder's lock. The server inherits it, so that it is held for exactly as long as
        one serves.
        """
        # O_CLOEXEC: only the server may inherit it, by `pass_fds`. Another child of this process
        # would hold the lock for as long as it runs.
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire(lock)
            yield lock
        finally:
            os.close(lock)

    def _acquire(self, lock: int) -> None:
        deadline = time.monotonic() + _ORPHANS_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                # The children of a killed server end a moment after it; only for that it pays to
                # wait.
                pid, port = _holder(lock)
                if _is_alive(pid) or time.monotonic() > deadline:
                    where = f"{self._lock_path.parent}: process {pid} on port {port}"
                    raise AlreadyServedError(f"A {self._name} already serves {where}") from error
                time.sleep(_PROBE_INTERVAL_S)
            else:
                # The previous holder's pid must not be reported while this server starts.
                os.ftruncate(lock, 0)
                return


def _holder(lock: int) -> tuple[int, int]:
    """Return the pid and port in the folder's lock; zeroes while its holder is only starting."""
    words = os.pread(lock, 100, 0).split()
    if len(words) == 2:
        return (int(words[0]), int(words[1]))
    return (0, 0)


def _is_alive(pid: int) -> bool:
    if pid == 0:
        return False
    try:
        # The state follows the name, which is in parentheses and may contain anything.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A zombie's files are closed: it no longer holds the lock.
    return state not in {"Z", "X"}


def _children(parent_pid: int) -> list[int]:
    """Return the direct children of a process. PostgreSQL's backends are all children of the
    postmaster.
    """
    children: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent_pid and fields[0] not in "ZX":
                children.append(int(entry.name))
    return children


def kill_all(pids: Sequence[int]) -> None:
    """SIGKILL processes and wait until each has ended. By pidfd, which no later process of the same
    pid inherits.
    """
    with contextlib.ExitStack() as stack:
        handles: list[int] = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                stack.callback(os.close, handle)
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                handles.append(handle)
        for handle in handles:
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            # A pidfd becomes readable when its process ends; `wait` would need a child of this
            # process.
            ended.poll(_ORPHANS_TIMEOUT_S * 1000)


def _rotated_size(log: Path) -> int:
    """Keep one older log when the current one has grown large; return the size of the log to append
    to.
    """
    if not log.exists():
        return 0
    if log.stat().st_size > _LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
        return 0
    return log.stat().st_size
